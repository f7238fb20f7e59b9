"""The output of `ramet run`: a row a line, in the input's order, so that what is there says where to go on.

A file is a run's own where each of its lines begins as a row does, with its place and what it was made from, or is the
head of a run. All of it is looked at before any of it is changed. What is no plain JSON Lines is made when all rows are
there; until then they lie in a part beside it, which is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from ramet.rows import numbered_rows, read_rows
from ramet.rows.form import RowsForm, form_of
from ramet.rows.head import HEAD, head_line, head_of
from ramet.rows.json_rows import json_rows
from ramet.rows.names import steps_of
from ramet.rows.write import KeptColumns, write_rows

_ROW = re.compile(rb'\{\s*"index"\s*:\s*([0-9]{1,18})\s*,\s*"request"\s*:\s*"([^"\\]{0,200})"')
_HALF = re.compile(rb'\{"index": ([0-9]{1,18})')
_HEAD = b'{"%s": {' % HEAD.encode()
_PIECE = 1 << 16  # bytes at a time: a line that no run wrote may be as long as the file


def line_of(row: Any) -> bytes:
    """A row, or a part of one, as strict JSON in UTF-8. Raises ValueError for half a surrogate pair and for a number
    that is not finite."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class OutputFile:
    """An output file, held under a lock.

    Rows are appended to it, behind the head of their run. With `overwrite`, and where the file's form is not plain JSON
    Lines, they go to a file beside it, its name with `.part` behind it, which takes its place, or of which it is made,
    when all are there: until then it stays as it is, and a run that was stopped goes on with the part. A part that is
    begun without `overwrite` begins with the rows that the file has.

    Raises click.UsageError where another run holds the file, and for a pipe or a device; InvalidRequest for a file that
    cannot be read; OSError.
    """

    def __init__(self, path: Path, *, overwrite: bool, kept: KeptColumns | None = None) -> None:
        self.head: dict[str, Any] | None = None  # of what is appended
        self.heads: list[dict[str, Any]] = []  # of what is there
        self._end = 0  # of the whole rows
        self._target: Path | None = None  # whose place it takes
        self._old: int | None = None  # what is there still
        self._given = path  # whose name says the form
        self._kept = kept
        self._is_plain = form_of(path) == RowsForm("json")
        self._is_copy = False  # whether the part has the rows of the file and no others
        if not overwrite and self._is_plain:
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
        try:
            if not overwrite and self._old is not None:
                self._begin_with(path)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def holder(self) -> Path:
        """The file whose rows are there."""
        return self._given if self._is_copy else self.path

    def rows(self) -> Iterator[tuple[int, str]]:
        """Of each row that is there its place in the input, and what it was made from. Raises click.UsageError at a
        line, or half a line at the end, that no run wrote."""
        self._end = n_lines = 0
        last = -1
        self.heads = []
        with open(os.dup(self._file), "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(0)
            while begin := file.readline(_PIECE):
                size, end, n_lines = len(begin), begin[-2:], n_lines + 1
                while not end.endswith(b"\n") and (more := file.readline(_PIECE)):
                    size, end = size + len(more), (end + more)[-2:]
                if not end.endswith(b"\n"):
                    self._check_half(begin, last)
                    return
                row = _ROW.match(begin)
                is_row = row is not None and end == b"}\n" and _follows(int(row[1]), last)
                if not (is_row or self._take_head(begin)):
                    raise self._strange(f"line {n_lines}")
                self._end += size
                if is_row and row is not None:
                    last = int(row[1])
                    yield last, row[2].decode(errors="replace")

    def mend(self) -> int:
        """Cut what follows the whole rows that `rows` has found, half a row: the number of bytes."""
        n_bytes = os.fstat(self._file).st_size - self._end
        if n_bytes:
            os.ftruncate(self._file, self._end)
        return n_bytes

    def clear(self) -> None:
        """Take off all rows."""
        self._end, self.heads = 0, []
        os.ftruncate(self._file, 0)

    def append(self, line: bytes) -> None:
        """Write a row, behind the run's head where the rows before have another, and hand it to the system. Where that
        fails, nothing of the row stays, and the OSError names the file."""
        if self.head is not None and self.head not in self.heads[-1:]:
            line = line_of(head_line(self.head)) + line
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
        self._is_copy = False
        if self.head is not None:
            self.heads = [self.head]

    def finish(self) -> None:
        """All rows are there: a part takes the place, and the permissions, of the file that it is for; or that file is
        made of it, with the kept columns in a table."""
        if self._target is None or self._is_copy:
            return
        os.fsync(self._file)
        if self._is_plain:
            if self._old is not None:
                os.fchmod(self._file, stat.S_IMODE(os.fstat(self._old).st_mode))
            self.path.replace(self._target)
        else:
            part = PartRows(self.path)
            write_rows(self._given, part, part.heads(), self._kept)
            self.path.unlink()
        self.path, self._target = self._target, None

    def _begin_with(self, old: Path) -> None:
        """Copy the rows of the file into the part, unless it has them, and more."""
        theirs = [(row.get("index"), row.get("request")) for row in read_rows(old)]
        if not all(type(index) is int and isinstance(request, str) for index, request in theirs):
            raise click.UsageError(f"{old} was not written by `ramet run`; choose another file, or --overwrite it")
        ours = list(self.rows())
        if len(ours) <= len(theirs):
            self._copy(old)
        elif ours[: len(theirs)] != theirs:
            raise click.UsageError(f"{self.path} goes on from other rows than those of {old}; --overwrite goes on")

    def _copy(self, old: Path) -> None:
        heads: list[dict[str, Any]] = []
        dropped = set() if self._kept is None else {steps_of(name)[0] for name in self._kept.names}
        self.clear()
        for _, row in numbered_rows(old, heads=heads):
            lines = [head_line(head) for head in heads[len(self.heads) :]]
            self.heads = list(heads)
            lines.append({name: value for name, value in row.items() if name not in dropped})
            self.append(b"".join(map(line_of, lines)))
        self._is_copy = True

    def _take_head(self, line: bytes) -> bool:
        """Whether a line is the head of a run, which is noted."""
        head = None
        if line.startswith(_HEAD) and line.endswith(b"}}\n"):
            with suppress(ValueError):
                head = head_of(json.loads(line))
        self.heads += [] if head is None else [head]
        return head is not None

    def _check_half(self, begin: bytes, last: int) -> None:
        if not _is_half(begin, last):
            raise self._strange("the half line at the end")

    def _strange(self, what: str) -> click.UsageError:
        return click.UsageError(f"{what} of {self.path} was not written by `ramet run`; {self._remedy}")

    def _close(self) -> None:
        if self._target is not None and (self._is_copy or os.fstat(self._file).st_size == 0):
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._close_old()

    def _close_old(self) -> None:
        if self._old is not None:
            os.close(self._old)


@dataclass(frozen=True, slots=True)
class PartRows:
    """The rows of a part, which may be read more than once."""

    path: Path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for _, row in json_rows(self.path, lambda _: None, "", []))

    def heads(self) -> list[dict[str, Any]]:
        """The heads of the runs that wrote them."""
        found: list[dict[str, Any]] = []
        for _ in json_rows(self.path, lambda _: None, "", found):
            pass
        return found


def _follows(index: int, last: int) -> bool:
    """Whether a row of this place may come behind the `last`, or be the first, where that is -1."""
    return index == 0 if last < 0 else index > last


def _is_half(begin: bytes, last: int) -> bool:
    """Whether a line without its end may be half a row, or half a head."""
    if begin.startswith(_HEAD) or _HEAD.startswith(begin) or b'{"index": '.startswith(begin):
        return True
    row = _HALF.match(begin)
    if row is None or not (rest := begin[row.end() :]):
        return row is not None
    request = b', "request": "'
    return _follows(int(row[1]), last) and rest[: len(request)] == request[: len(rest)]


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
