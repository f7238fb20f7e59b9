"""The output of `ramet run`: a row a line, in the input's order, so that what is there says where to go on.

A file is a run's own where each of its lines begins as a row does, with its place and what it was made from. All of it
is looked at before any of it is changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import click

_HEAD = re.compile(rb'\{\s*"index"\s*:\s*([0-9]{1,18})\s*,\s*"request"\s*:\s*"([^"\\]{0,200})"')
_PIECE = 1 << 16  # bytes at a time: a line that no run wrote may be as long as the file


def line_of(row: Any) -> bytes:
    """A row, or a part of one, as strict JSON in UTF-8. Raises ValueError for half a surrogate pair and for a number
    that is not finite."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class OutputFile:
    """An output file, held under a lock.

    Rows are appended to it. With `overwrite` they go to a file beside it, its name with `.part` behind it, which takes
    its place when all are there: until then it stays as it is, and a run that was stopped goes on with the part.
    Raises click.UsageError where another run holds the file, and for a pipe or a device; OSError.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._end = 0  # of the whole rows
        self._target: Path | None = None  # whose place it takes
        self._old: int | None = None  # what is there still
        if not overwrite:
            self.path, self._remedy = path, "choose another file, or --overwrite it"
            self._file = _held(path, os.O_CREAT)
            return
        self._target = Path(os.path.realpath(path))
        self.path, self._remedy = self._target.with_name(f"{self._target.name}.part"), "move it away"
        with suppress(FileNotFoundError):
            self._old = _held(path, 0)
        try:
            self._file = _held(self.path, os.O_CREAT | os.O_NOFOLLOW)
        except BaseException:
            self._close_old()
            raise

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._target is not None and os.fstat(self._file).st_size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._close_old()

    def rows(self) -> Iterator[str]:
        """What each row that is there was made from. Raises click.UsageError at a line, or half a line at the end, that
        no run wrote."""
        self._end = n_rows = 0
        with open(os.dup(self._file), "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(0)
            while begin := file.readline(_PIECE):
                size, end = len(begin), begin[-2:]
                while not end.endswith(b"\n") and (more := file.readline(_PIECE)):
                    size, end = size + len(more), (end + more)[-2:]
                if not end.endswith(b"\n"):
                    self._check_half(begin, n_rows)
                    return
                head = _HEAD.match(begin)
                if head is None or int(head[1]) != n_rows or end != b"}\n":
                    raise self._strange(f"line {n_rows + 1}")
                self._end += size
                n_rows += 1
                yield head[2].decode(errors="replace")

    def mend(self) -> int:
        """Cut what follows the whole rows that `rows` has found, half a row: the number of bytes."""
        n_bytes = os.fstat(self._file).st_size - self._end
        if n_bytes:
            os.ftruncate(self._file, self._end)
        return n_bytes

    def clear(self) -> None:
        """Take off all rows."""
        self._end = 0
        os.ftruncate(self._file, 0)

    def append(self, line: bytes) -> None:
        """Write a row and hand it to the system. Where that fails, nothing of the row stays, and the OSError names the
        file."""
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            error.filename = str(self.path)
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(line)

    def finish(self) -> None:
        """All rows are there: a part takes the place, and the permissions, of the file that it is for."""
        if self._target is None:
            return
        os.fsync(self._file)
        if self._old is not None:
            os.fchmod(self._file, stat.S_IMODE(os.fstat(self._old).st_mode))
        self.path.replace(self._target)
        self.path, self._target = self._target, None

    def _check_half(self, begin: bytes, n_rows: int) -> None:
        head = b'{"index": %d, "request": "' % n_rows
        if begin[: len(head)] != head[: len(begin)]:
            raise self._strange("the half line at the end")

    def _strange(self, what: str) -> click.UsageError:
        return click.UsageError(f"{what} of {self.path} was not written by `ramet run`; {self._remedy}")

    def _close_old(self) -> None:
        if self._old is not None:
            os.close(self._old)


def _held(path: Path, flags: int) -> int:
    """A file's descriptor, under a lock that no other run has."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise click.UsageError(f"{path} is a pipe or a device: name a file")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file), path.stat()):  # another run has put its own in this place meanwhile
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as error:
        os.close(file)
        raise click.UsageError(f"another run is writing to {path}") from error
    except BaseException:
        os.close(file)
        raise
    return file
