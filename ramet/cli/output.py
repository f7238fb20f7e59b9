"""The output of `ramet run`: a row a line, in the input's order, so that what is there says where to go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import click


class Output:
    """An output file, held under a lock. Opening it mends a half-written last line and counts the rows.

    Raises click.UsageError when another run holds it.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise click.UsageError(f"another run is writing to {path}") from error
        if overwrite:
            self._file.truncate(0)
        self.n_mended_bytes = self._mend()

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def rows(self) -> Iterator[dict[str, Any]]:
        """What is in the file. Raises click.UsageError at a line that no run wrote."""
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not (isinstance(row, dict) and row.get("index") == number - 1 and isinstance(row.get("request"), str)):
                raise click.UsageError(
                    f"line {number} of {self.path} was not written by `ramet run`; "
                    "choose another file, or --overwrite it"
                )
            yield row

    def append(self, row: dict[str, Any]) -> None:
        """Write a row and hand it to the system."""
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def _mend(self) -> int:
        """Cut what follows the last line's end; the number of bytes that were cut."""
        size = self._file.seek(0, os.SEEK_END)
        keep = self._end_of_last_line(size)
        if keep < size:
            self._file.truncate(keep)
        return size - keep

    def _end_of_last_line(self, size: int) -> int:
        step = 1 << 16
        for end in range(size, 0, -step):
            start = max(0, end - step)
            self._file.seek(start)
            at = self._file.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
        return 0
