"""A file with compiled kernels: a tar archive whose first member, manifest.json, says what they are good for and gives
the SHA-256 of each of the others, which are ENTRY/NAME as in Triton's cache, and HOST, the host's compiled code.

Only what a launch needs is in it: binaries, their descriptions, the lists of both, and the C modules that launch them.
Triton's lists name files by their full path: here by name alone, and by the full path again when they are installed.
Modules are code that will run: install bundles of people you trust.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramet.errors import InvalidRequest
from ramet.files import replacing
from ramet.ops.kernels.host import HOST
from ramet.ops.kernels.kind import Device, Kind

FORMAT = 1
_MANIFEST = "manifest.json"
_NEEDED = (".cubin", ".json", ".so")
_LIST = "__grp__"
_MEMBER = re.compile(r"[A-Z2-7]{16,64}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def write(file: Path, directory: Path, kind: Kind) -> int:
    """Write the kernels of a cache directory to a bundle, in one move; returns how many files it has.

    Raises InvalidRequest when there are none.
    """
    members = dict(_members(directory))
    if not members:
        raise InvalidRequest(f"{directory} has no kernels", field="out")
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    manifest = {"format": FORMAT, "kind": asdict(kind), "files": sums}
    with replacing(file) as made, tarfile.open(made, mode="w:gz") as archive:
        for name, data in {_MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return len(members)


def install(file: Path, device: Device | None) -> tuple[Kind, int]:
    """Put a bundle's kernels where `use` looks for them; returns what they are for and how many files they are.

    Without a card to compare with (None) they are installed for the card that the bundle names. All is checked before
    anything is written. Raises InvalidRequest for a file that is no bundle, is damaged, or is made for another kind.
    """
    kind, members = _read(file)
    here = Kind.here(_capability(kind)) if device is None else Kind.of(device)
    if differences := list(kind.differences(here)):
        raise InvalidRequest(f"made for {'; '.join(differences)}", field=str(file))
    for name in sorted(members, key=lambda name: (_is_list(name), name)):  # a list comes after what it names
        _put(kind.directory / name, members[name])
    return kind, len(members)


def _capability(kind: Kind) -> tuple[int, int]:
    major, _, minor = kind.capability.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise InvalidRequest(f"{kind.capability!r} is no capability of a card", field="kind")
    return int(major), int(minor)


def _members(directory: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a cache that a launch needs, with lists by name, and the host's code where it is there."""
    if (directory / HOST).exists():
        yield HOST, (directory / HOST).read_bytes()
    for path in sorted(directory.glob("*/*")):
        name = f"{path.parent.name}/{path.name}"
        if path.is_file() and path.name.endswith(_NEEDED) and _MEMBER.fullmatch(name):
            data = path.read_bytes()
            yield name, _listing(data, None) if _is_list(name) else data


def _read(file: Path) -> tuple[Kind, dict[str, bytes]]:
    try:
        with closing(tarfile.open(file, mode="r:gz")) as archive:
            first = archive.next()
            if first is None or first.name != _MANIFEST:
                raise InvalidRequest(f"no bundle of kernels: {_MANIFEST} does not come first", field=str(file))
            manifest = json.loads(_contents(archive, first, file))
            if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
                raise InvalidRequest("a bundle of another format", field=str(file))
            kind, sums = Kind.read(manifest.get("kind")), manifest.get("files")
            members = {member.name: _contents(archive, member, file) for member in iter(archive.next, None)}
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise InvalidRequest(f"no bundle of kernels: {error}", field=str(file)) from error
    _check(members, sums, file)
    return kind, members


def _contents(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> bytes:
    """Of a plain file whose name is one of ours."""
    if not member.isreg() or not (member.name in (_MANIFEST, HOST) or _MEMBER.fullmatch(member.name)):
        raise InvalidRequest(f"{member.name!r} has no place in a bundle", field=str(file))
    source = archive.extractfile(member)
    assert source is not None
    return source.read()


def _check(members: dict[str, bytes], sums: Any, file: Path) -> None:
    if not isinstance(sums, dict) or set(sums) != set(members):
        raise InvalidRequest("damaged: the manifest lists other files than there are", field=str(file))
    for name, data in members.items():
        if hashlib.sha256(data).hexdigest() != sums[name]:
            raise InvalidRequest(f"damaged: {name} has another checksum", field=str(file))
        if _is_list(name):
            _listing(data, None)


def _is_list(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_LIST)


def _listing(data: bytes, entry: Path | None) -> bytes:
    """A list with its files by name, or in the directory of an entry. Raises InvalidRequest when it is not a list."""
    try:
        names = [Path(name).name for name in json.loads(data)["child_paths"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest("not one of Triton's lists of files", field=_LIST) from error
    paths = {name: name if entry is None else str(entry / name) for name in names}
    return json.dumps({"child_paths": paths}).encode()


def _put(path: Path, data: bytes) -> None:
    """In one move, so that no process sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{os.getpid()}.{path.name}")
    made.write_bytes(_listing(data, path.parent) if _is_list(path.name) else data)
    made.replace(path)
