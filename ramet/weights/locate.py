"""Location: where a model's files are, from a name, a path or an id of the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import CheckpointError
from ramet.quoting import shown
from ramet.weights.beside import check_bare
from ramet.weights.hub import download
from ramet.weights.known import KNOWN
from ramet.weights.named import named_file

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)[:/](?P<file>[\w./-]+\.gguf)")
_SNAPSHOTS = "snapshots"  # in the hub's cache: models--OWNER--NAME/snapshots/COMMIT


@dataclass(frozen=True)
class Location:
    """path: a directory with config.json, or a .gguf file. name: the model's, for people; nothing else hangs on it."""

    path: Path
    name: str


def locate(source: str | Path) -> Location:
    """Find a model, and download it from the hub where it must be.

    `source` is a name of KNOWN ("smollm2", "qwen2.5-1.5b"), a directory, a .gguf file, a hub id ("owner/repo") or a hub
    id with a file ("owner/repo:file.gguf" or "owner/repo/file.gguf"). A path that exists wins over a hub id.
    Raises CheckpointError.
    """
    text = str(source)
    if isinstance(source, str) and text in KNOWN:
        if Path(text).exists():
            raise CheckpointError(
                f"{text} is a known model, and here is a file or directory of that name: write ./{text}"
            )
        return Location(named_file(text), text)
    path = Path(os.path.expanduser(source))  # noqa: PTH111 - Path's own raises for a user without a home
    try:
        found = bool(text.strip()) and path.exists()  # of "" a Path makes the current directory
    except OSError as error:  # such as a name that is too long
        raise CheckpointError(f"{shown(text)} cannot be looked for: {error}") from error
    if found:
        return _local(path)
    if isinstance(source, str) and (match := _HUB_FILE.fullmatch(text)):
        return Location(download(match["repo"], match["file"]), Path(match["file"]).stem)
    if isinstance(source, str) and _HUB_ID.fullmatch(text) and text[0] != ".":
        return Location(download(text, None), text)
    known = ", ".join(KNOWN)
    raise CheckpointError(f"{text!r} is no file or directory, no known model ({known}) and no hub id (owner/repo)")


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
