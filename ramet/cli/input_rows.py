"""The input of `ramet run`: requests of a file in any form, each with what it is known by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from ramet.cli.kept import kept_columns, parted
from ramet.cli.requests import MAX_BYTES
from ramet.errors import InvalidRequest
from ramet.rows import numbered_rows, table_columns
from ramet.rows.form import form_of
from ramet.rows.text import BOM, opened

_PIECE = 1 << 16  # bytes at a time of what is not kept of a line


@dataclass(frozen=True, slots=True)
class InputRow:
    """A request: `index` is its place among the input's rows, `line` its JSON, which may be none. `kept` has what else
    the row of a table holds; None of JSON Lines, where that lies in the line."""

    index: int
    line: bytes
    kept: dict[str, Any] | None = None

    @property
    def source(self) -> bytes:
        """All of the row, of which its mark is made."""
        return self.line.strip() + (json.dumps(self.kept).encode() if self.kept else b"")


@dataclass(frozen=True)
class RunInput:
    """Every `every`-th row of a file, `limit` of them at most. `keep` names fields that are kept whatever they mean."""

    path: Path
    every: int = 1
    limit: int | None = None
    keep: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def is_table(self) -> bool:
        return form_of(self.path).is_table

    @cached_property
    def columns(self) -> list[str]:
        """Of a table, the names of its columns."""
        return table_columns(self.path) if self.is_table else []

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Of a table, the columns that are kept. Raises InvalidRequest."""
        try:
            return kept_columns(self.columns, self.keep)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.path}: {error}") from error

    def rows(self) -> Iterator[InputRow]:
        """The rows in order. Raises InvalidRequest for a table that cannot be read; a line that cannot is a row."""
        rows = self._table() if self.is_table else self._lines()
        end = None if self.limit is None else self.limit * self.every
        return islice(rows, 0, end, self.every)

    def _lines(self) -> Iterator[InputRow]:
        for index, line in enumerate(read_lines(self.path)):
            yield InputRow(index, line)

    def _table(self) -> Iterator[InputRow]:
        assert self.kept is not None  # the names are good
        for index, (_, row) in enumerate(numbered_rows(self.path)):
            request, kept = parted(row, self.keep)
            asked = {name: row[name] for name in row if row[name] is not None and (name in request or name == "id")}
            yield InputRow(index, json.dumps(asked, ensure_ascii=False).encode(), kept)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines that hold something, without their ends; of one beyond MAX_BYTES its first MAX_BYTES + 1. Raises
    InvalidRequest for what gzip cannot read."""
    begun = False
    with opened(path, lambda _: None) as readline:
        while piece := readline(MAX_BYTES + 1):
            line = (piece if begun else piece.removeprefix(BOM)).removesuffix(b"\n")
            begun = True
            while not piece.endswith(b"\n") and (piece := readline(_PIECE)):
                pass
            if len(line) > MAX_BYTES or line.strip():
                yield line
