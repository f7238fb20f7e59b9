"""Digests of files: every byte, hashed in threads, and remembered while a file stays as it is.

A digest is the SHA-256 of the SHA-256 of each part, so that one large file keeps all threads busy (hashlib releases the
interpreter's lock; with the processor's own instructions a thread hashes about 1 GB/s). A file from REMEMBERED bytes on
is hashed once: a small file beside it, or in the user's cache directory where that cannot be written, keeps the digest
with the file's device, inode, size, mtime and ctime, and counts while all of these are equal. A file that changed less
than YOUNG_S before it was hashed is not remembered: it may change again within one tick of the clock that stamps it.
Other bytes under the same five values, as a damaged disk may return them, are not noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Self

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from ramet.errors import CheckpointError
from ramet.foreign import check_regular, read_json
from ramet.ops.native.build import cache_directory

REMEMBERED = 1 << 28  # bytes; fewer are read again in a fraction of a second
YOUNG_S = 2.0
_PART = 1 << 26
_READ = 1 << 22  # bytes at a time
_FORMAT = 1
_MOST_THREADS = 16
_QUIET_S = 1.0  # before a bar is shown


class Hashing:
    """Hashes files in threads, while other work goes on. A context manager, which ends the threads."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._pool = ThreadPoolExecutor(min(torch.get_num_threads(), _MOST_THREADS), "ramet-hash")
        self._files = [_File.begun(file, self._pool) for file in files]

    def results(self) -> list[str]:
        """Wait for the digests, hexadecimal. Raises CheckpointError for a file that changed or that cannot be read."""
        parts = [part for file in self._files for part in file.parts]
        for part in tqdm(parts, desc="Hashing the files", unit="part", delay=_QUIET_S, disable=None):
            wait([part])
        return [file.digest() for file in self._files]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


class _File:
    """A file whose parts are being hashed, or whose digest is remembered."""

    def __init__(self, path: Path, known: str | None, begun: dict[str, int], parts: Sequence[Future[bytes]]) -> None:
        self._path = path
        self._known = known
        self._begun = begun
        self.parts = parts
        self._at_ns = time.time_ns()

    @classmethod
    def begun(cls, path: Path, pool: ThreadPoolExecutor) -> Self:
        with _reading(path):
            path = path.resolve(strict=True)  # a link's target is what is remembered
            check_regular(path)
            stamp = _stamp(path)
        known = _remembered(path, stamp) if stamp["size"] >= REMEMBERED else None
        starts = range(0, stamp["size"], _PART) if known is None else ()
        return cls(path, known, stamp, [pool.submit(_part, path, start) for start in starts])

    def digest(self) -> str:
        if self._known is None:
            with _reading(self._path):
                whole = hashlib.sha256(b"".join(part.result() for part in self.parts)).hexdigest()
                if _stamp(self._path) != self._begun:
                    raise CheckpointError(f"{self._path} changed while it was read; start again when it is complete")
            self._known = whole
            youngest = max(self._begun["mtime_ns"], self._begun["ctime_ns"])
            if self._begun["size"] >= REMEMBERED and youngest + YOUNG_S * 1e9 < self._at_ns:
                _remember(self._path, self._begun, whole)
        return self._known


def _part(path: Path, start: int) -> bytes:
    digest = hashlib.sha256()
    held = memoryview(bytearray(_READ))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        for _ in range(0, _PART, _READ):
            n = 0
            while n < _READ and (more := file.readinto(held[n:])):
                n += more
            digest.update(held[:n])
    return digest.digest()


def _stamp(path: Path) -> dict[str, int]:
    """The numbers that change when a file changes."""
    found = path.stat()
    return {
        "device": found.st_dev, "inode": found.st_ino, "size": found.st_size, "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
    }  # fmt: skip


def _notes(path: Path) -> Iterator[Path]:
    """The places for a file's digest: the first that can be written has it."""
    yield path.with_name(f".{path.name}.ramet-digest")
    with contextlib.suppress(OSError):
        yield cache_directory() / "digests" / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _remembered(path: Path, stamp: dict[str, int]) -> str | None:
    for note in _notes(path):
        with contextlib.suppress(OSError, CheckpointError, KeyError):
            held = read_json(note)
            if held["format"] == _FORMAT and held["file"] == stamp:
                return str(held["digest"])
    return None


def _remember(path: Path, stamp: dict[str, int], digest: str) -> None:
    text = json.dumps({"format": _FORMAT, "file": stamp, "digest": digest}) + "\n"
    for note in _notes(path):
        made = note.with_name(f"{note.name}.{os.getpid()}")
        try:
            if note.parent != path.parent:
                note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            made.write_text(text, encoding="utf-8")
            made.replace(note)
        except OSError:
            continue
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
        return


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # the latter for a link that leads to itself
        raise CheckpointError(f"{path} cannot be read: {error}") from error
