"""The compiled code by which a card's host packs and plans rounds: compiled here, or from a bundle."""

from __future__ import annotations

from pathlib import Path

from ramet.errors import EngineFault, InvalidRequest
from ramet.files import replacing
from ramet.ops import native
from ramet.ops.kernels.kind import Device, Kind
from ramet.ops.native.build import FLAGS, BuildError, build, find_compiler

HOST = "host.so"  # beside the kernels of a kind
_FLAGS = tuple(flag for flag in FLAGS if not flag.startswith("-march"))  # for any processor of the machine's kind


def host_library(device: Device) -> native.Library:
    """Raises InvalidRequest where there is neither a compiler nor a bundle's."""
    found, reason = native.compiled()
    if found is not None:
        return found
    try:
        return native.Library.open(Kind.of(device).directory / HOST, None)
    except BuildError as error:
        raise InvalidRequest(
            f"needs ramet's C++ on the host too, which is {reason}. Install a C++ compiler, or take the kernels of "
            "another machine: ramet warmup --out there, --in here",
            field="device",
        ) from error


def compile_host(directory: Path) -> None:
    """Put the code into a kind's directory, from where `bundle.write` takes it. What a bundle has brought stays where
    there is no compiler. Raises EngineFault."""
    if native.compiled()[0] is None:
        return
    try:
        made = build(find_compiler(), None, _FLAGS)
    except BuildError as error:
        raise EngineFault(f"the host's C++ does not compile for other machines: {error}") from error
    with replacing(directory / HOST) as file:
        file.write_bytes(made.read_bytes())
