"""The directory of the cache tier on disk: names and files. It knows neither budgets nor threads.

    DIRECTORY/<hash of an identity>/identity.json         for people
                                   /<2 digits>/<40 digits of the key>.safetensors
             /.ramet-writing-XXXX/                        a file being written, renamed into place when whole

Only their own user may read the files, since they hold what requests said. Anything else in the directory is left
alone. A file's modification time is the time of its last use. Nothing is synced: a file cut short has a wrong checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ramet.cache.entry import Damaged, Entry, read_entry, write_entry

_IDENTITY = re.compile(r"[0-9a-f]{16}")
_FAN = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{40}\.safetensors")
_SCRATCH_PREFIX = ".ramet-writing-"
_SCRATCH = re.compile(re.escape(_SCRATCH_PREFIX) + ".*")
_STALE_S = 3600.0  # no write takes that long: its process is gone


class Directory:
    """Files of entries by name (a path below the root), which several processes may use. Methods raise OSError."""

    def __init__(self, root: Path, identity: str) -> None:
        self.root = root
        self._identity = identity
        self._own = hashlib.sha256(identity.encode()).hexdigest()[:16]

    def name(self, key: bytes) -> str:
        """The name of the file for a key (20 bytes) of this identity."""
        digits = key.hex()
        return f"{self._own}/{digits[:2]}/{digits}.safetensors"

    def is_own(self, name: str) -> bool:
        """Whether a file of this name belongs to this identity."""
        return name.startswith(self._own + "/")

    def prepare(self) -> None:
        """Make the root, this identity's directory, and its note for people, where they are missing."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        note = self.root / self._own / "identity.json"
        if note.exists():
            return
        note.parent.mkdir(exist_ok=True)
        with self._scratch() as scratch:
            made = scratch / note.name
            made.write_text(json.dumps({"identity": self._identity}, indent=1) + "\n", encoding="utf-8")
            made.replace(note)

    def scan(self) -> dict[str, int]:
        """Bytes of all entries' files by name, of every identity, least recently used first."""
        found = []
        for identity in _listed(self.root, _IDENTITY):
            for fan in _listed(identity.path, _FAN):
                for file in _listed(fan.path, _FILE):
                    with contextlib.suppress(FileNotFoundError):  # another process removed it
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            name = f"{identity.name}/{fan.name}/{file.name}"
                            found.append((status.st_mtime_ns, name, status.st_size))
        return {name: size for _, name, size in sorted(found)}

    def write(self, name: str, entry: Entry) -> int:
        """Write an entry under one of our names, whole or not at all. Returns its bytes. Raises SafetensorError too."""
        self.prepare()
        target = self.root / name
        target.parent.mkdir(exist_ok=True)
        with self._scratch() as scratch:
            made = scratch / target.name
            write_entry(made, entry, self._label(name))
            _set_used(made)  # the kernel's own stamp is too coarse to tell two files apart
            size = made.stat().st_size
            made.replace(target)
        return size

    def read(self, name: str, size: int) -> Entry:
        """Read the entry under one of our names, whose file had so many bytes. Raises Damaged; FileNotFoundError where
        there is no file (any more)."""
        with open(self.root / name, "rb", buffering=0, opener=_opened) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise Damaged(f"it is no plain file of the {size} bytes that it had")
            # Not mapped: the process would be killed if another one cut the file short meanwhile.
            return read_entry(file.readall(), self._label(name))

    def touch(self, name: str) -> None:
        """Mark a file as most recently used. Where that is not allowed, only the order after a restart suffers."""
        with contextlib.suppress(OSError):
            _set_used(self.root / name)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the unfinished files of processes that ended while they wrote."""
        for scratch in _listed(self.root, _SCRATCH):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - scratch.stat(follow_symlinks=False).st_mtime > _STALE_S:
                    shutil.rmtree(scratch.path, ignore_errors=True)

    def _label(self, name: str) -> str:
        return f"{self._identity}\n{name}"

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.root, prefix=_SCRATCH_PREFIX, ignore_cleanup_errors=True) as made:
            yield Path(made)


def _listed(directory: str | Path, names: re.Pattern[str]) -> list[os.DirEntry[str]]:
    """The directory's content with these names; nothing where another process removed it or another user closed it."""
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if names.fullmatch(entry.name)]
    except (FileNotFoundError, PermissionError):
        return []


def _opened(path: str, flags: int) -> int:
    """Open a file without waiting for a pipe's other end or following a link, which others may have put there."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _set_used(file: Path) -> None:
    now = time.time_ns()
    os.utime(file, ns=(now, now))
