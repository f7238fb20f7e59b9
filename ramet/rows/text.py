"""Text of rows' files: line by line, through gzip where the name says so, in UTF-8 alone."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from ramet.errors import InvalidRequest

Advance = Callable[[int], None]  # gets how many bytes of the file were read
BOM = b"\xef\xbb\xbf"


@contextmanager
def opened(path: Path, advance: Advance) -> Iterator[Callable[[int], bytes]]:
    """`readline` of what a file holds, uncompressed: it takes the most bytes of a line, -1 for all. Raises
    InvalidRequest for what gzip cannot read."""
    with path.open("rb") as raw:
        file = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if path.name.lower().endswith(".gz") else raw)
        at = 0

        def readline(most: int) -> bytes:
            nonlocal at
            line = file.readline(most)
            advance(raw.tell() - at)
            at = raw.tell()
            return line

        try:
            yield readline
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            why = "is cut off" if isinstance(error, EOFError) else f"is no gzip file ({error})"
            raise InvalidRequest(f"{path} {why}: make it again, or unpack what it has with `gzip -dc`") from error


def numbered_lines(path: Path, advance: Advance) -> Iterator[tuple[int, str]]:
    """Each line with its end, and its number from 1. Raises InvalidRequest that names the byte which is not UTF-8,
    counted in what is uncompressed; a byte order mark at the beginning is none of the text."""
    with opened(path, advance) as readline:
        number = offset = 0
        while line := readline(-1):
            number += 1
            text = line.removeprefix(BOM) if number == 1 else line
            yield number, _decoded(path, number, text, offset + len(line) - len(text))
            offset += len(line)


def _decoded(path: Path, number: int, line: bytes, offset: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = offset + error.start
        raise fault(path, number, f"is not UTF-8: {error.reason} at byte {byte} of the file") from error


def fault(path: Path, number: int, message: str, *, what: str = "line") -> InvalidRequest:
    """An error at a line, or at another part, of a file."""
    return InvalidRequest(f"{path}, {what} {number}: {message}")
