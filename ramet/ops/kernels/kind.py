"""What compiled kernels are good for, and the directory that Triton keeps them in."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch

from ramet.errors import InvalidRequest
from ramet.ops.native.build import cache_directory
from ramet.version import __version__

Device: TypeAlias = torch.device | str
VARIABLE = "TRITON_CACHE_DIR"
_SOURCES = Path(__file__).parents[1]
_SAFE = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True, slots=True)
class Kind:
    """Versions and a card: kernels serve where all of them are the same. `capability` is "9.0" for an H200; `python`
    and `machine` are there for the small C modules that launch kernels; `sources` is a hash of Ramet's kernels and of
    the host's C++."""

    ramet: str
    sources: str
    triton: str
    torch: str
    python: str
    machine: str
    capability: str

    def __post_init__(self) -> None:
        """The parts name a directory, and may come from a file."""
        for name, value in asdict(self).items():
            if not isinstance(value, str) or not _SAFE.fullmatch(value):
                raise InvalidRequest(f"{value!r} is no version", field=name)

    @classmethod
    def here(cls, capability: tuple[int, int]) -> Self:
        """Of this machine, with a card of this capability. Raises InvalidRequest where Triton is not installed."""
        return cls(
            ramet=__version__, sources=_digest_of_sources(), triton=_version_of_triton(), torch=torch.__version__,
            python=str(sys.implementation.cache_tag), machine=platform.machine(),
            capability=".".join(map(str, capability)),
        )  # fmt: skip

    @classmethod
    def of(cls, device: Device) -> Self:
        """Of this machine with one of its cards, "cuda" or "cuda:N"."""
        return cls.here(torch.cuda.get_device_capability(device))

    @classmethod
    def read(cls, data: Any) -> Self:
        """From a file. Raises InvalidRequest when it is not one."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise InvalidRequest(f"not the fields {', '.join(sorted(names))}", field="kind")
        return cls(**data)

    def differences(self, other: Kind) -> Iterator[str]:
        """In words, of this kind from another, which is that of this machine."""
        for name, value in asdict(self).items():
            if value != getattr(other, name):
                yield f"{name} {value}, here {getattr(other, name)}"

    @property
    def directory(self) -> Path:
        """Where this kind's kernels are kept, within the cache directory that the CPU's kernels use too."""
        card, sources = self.capability.replace(".", ""), self.sources[:8]
        name = (
            f"triton{self.triton}-torch{self.torch}-{self.python}-{self.machine}-sm{card}-ramet{self.ramet}-{sources}"
        )
        return cache_directory() / "kernels" / name


_set_here: str | None = None  # what `use` has put into the environment


def use(device: Device) -> Path:
    """Have Triton keep this process's kernels in the directory of their kind, before the first one is compiled.

    Returns the directory, which is the user's own where the environment names one.
    """
    global _set_here
    named = os.environ.get(VARIABLE)
    if named and named != _set_here:
        return Path(named)
    directory = Kind.of(device).directory
    directory.mkdir(parents=True, exist_ok=True)
    _set_here = os.environ[VARIABLE] = str(directory)
    return directory


def _version_of_triton() -> str:
    try:
        return version("triton")
    except ImportError as error:  # PackageNotFoundError is one
        raise InvalidRequest("Triton is not installed; torch's builds for CUDA bring it", field="device") from error


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for file in sorted(file for name in ("*/triton.py", "native/*.cpp", "native/*.h") for file in _SOURCES.glob(name)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:20]
