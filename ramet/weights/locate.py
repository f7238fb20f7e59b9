"""Location: where a model's files are, from a name, a path or an id of the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import CheckpointError
from ramet.quoting import shown
from ramet.weights.beside import check_bare
from ramet.weights.packaged import PACKAGES, packaged

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)[:/](?P<file>[\w./-]+\.gguf)")
_SNAPSHOTS = "snapshots"  # in the hub's cache: models--OWNER--NAME/snapshots/COMMIT
_PATTERNS = ("*.json", "*.safetensors", "*.jinja")


@dataclass(frozen=True)
class Location:
    """path: a directory with config.json, or a .gguf file. name: the model's, for people; nothing else hangs on it."""

    path: Path
    name: str


def locate(source: str | Path) -> Location:
    """Find a model, and download it from the hub where it must be.

    `source` is a packaged name ("smollm2", "gemma3-270m"), a directory, a .gguf file, a hub id ("owner/repo") or a hub
    id with a file ("owner/repo:file.gguf" or "owner/repo/file.gguf"). A path that exists wins over a hub id.
    Raises CheckpointError.
    """
    text = str(source)
    if isinstance(source, str) and text in PACKAGES:
        return Location(packaged(text), text)
    path = Path(os.path.expanduser(source))  # noqa: PTH111 - Path's own raises for a user without a home
    try:
        found = bool(text.strip()) and path.exists()  # of "" a Path makes the current directory
    except OSError as error:  # such as a name that is too long
        raise CheckpointError(f"{shown(text)} cannot be looked for: {error}") from error
    if found:
        return _local(path)
    if isinstance(source, str) and (match := _HUB_FILE.fullmatch(text)):
        return Location(_download(match["repo"], match["file"]), Path(match["file"]).stem)
    if isinstance(source, str) and _HUB_ID.fullmatch(text) and text[0] != ".":
        return Location(_download(text, None), text)
    known = ", ".join(PACKAGES)
    raise CheckpointError(f"{text!r} is no file or directory, no packaged model ({known}) and no hub id (owner/repo)")


def _local(path: Path) -> Location:
    if path.is_dir():
        check_bare(path)
    if path.is_dir() and not (path / "config.json").exists():
        found = sorted(path.glob("*.gguf"))
        if len(found) > 1:
            raise CheckpointError(f"{path} holds several .gguf files; name one: {', '.join(f.name for f in found)}")
        path = found[0] if found else path
    if path.is_file() and path.suffix != ".gguf":
        raise CheckpointError(f"{path} is no .gguf file; name the directory that holds config.json")
    return Location(path, path.stem if path.is_file() else _name(path))


def _name(directory: Path) -> str:
    """The hub's OWNER/NAME of a snapshot in its cache, whose own name is a commit's hash; else the directory's."""
    for path in (directory.absolute(), directory.resolve()):
        *_, repo, kind, _ = ("", "", *path.parts)
        if kind == _SNAPSHOTS and repo.startswith("models--"):
            return repo.removeprefix("models--").replace("--", "/")
    return directory.resolve().name


def _download(repo: str, file: str | None) -> Path:
    """Fetch what is not yet in the cache; the token, the cache and offline mode are the hub library's own settings."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if constants.HF_HUB_CACHE.startswith("~"):  # nobody knows whose
        raise CheckpointError(f"{repo} has no place to be kept: this user has no home directory; set HF_HOME to one")
    try:
        patterns = list(_PATTERNS) if file is None else [file]
        nested = ["*/*", "consolidated*"] if file is None else None  # other copies of the same weights
        directory = Path(snapshot_download(repo, allow_patterns=patterns, ignore_patterns=nested))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(f"{repo} is not in the local cache, and the hub cannot be reached: {error}") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        message = f"{repo} cannot be fetched: {error}; check the name, and set HF_TOKEN if the model is gated"
        raise CheckpointError(message) from error
    if file is None:
        check_bare(directory)
    if file is None and not (directory / "config.json").exists():
        raise CheckpointError(f"{repo} holds no config.json; if it holds GGUF files, name one: {repo}:FILE.gguf")
    if file is not None and not (directory / file).exists():
        raise CheckpointError(f"{repo} holds no {file}")
    return directory if file is None else directory / file
