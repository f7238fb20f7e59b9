"""Rows to files: JSON Lines, CSV and Parquet, by the ending of the name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from ramet.errors import InvalidRequest
from ramet.files import replacing
from ramet.rows import table_rows
from ramet.rows.columns import FIRST, columns_of
from ramet.rows.csv_rows import write_csv
from ramet.rows.form import RowsForm, form_of
from ramet.rows.head import beside, head_line
from ramet.rows.names import flat

Row = Mapping[str, Any]
Heads = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """Columns of the table `source` that go into another as they are, of every `every`-th of its rows."""

    source: Path
    names: tuple[str, ...]
    every: int = 1

    def cells(self) -> Iterator[dict[str, Any]]:
        """Of each row its cells."""
        for _, row in islice(table_rows(self.source), 0, None, self.every):
            yield {name: row[name] for name in self.names}


def write_rows(path: Path, rows: Iterable[Row], heads: Heads = (), kept: KeptColumns | None = None) -> None:
    """Write `rows` to a file in the form that its name's ending says; it takes the place of one that is there when all
    of it is written. `heads` say how a run made the rows: they are lines of JSON Lines, metadata of Parquet, and of
    CSV a file beside it. A table reads `rows` twice, so they are no iterator, and has `kept` columns of another.

    Raises InvalidRequest for a form that is not known, for two columns of one name, and for a value that the form has
    no way to write; OSError.
    """
    form = form_of(path)
    with replacing(path) as made:
        try:
            if form.kind == "json":
                with compressed(made, form) as file:
                    _write_lines(file, rows, heads)
            elif form.kind == "csv":
                with compressed(made, form) as file:
                    _write_csv(file, rows, kept)
                _write_beside(path, heads)
            else:
                from ramet.rows.parquet_writer import write_parquet

                write_parquet(made, rows, heads, kept)
        except ValueError as error:
            raise InvalidRequest(f"{path}: {error}") from error


@contextmanager
def compressed(path: Path, form: RowsForm) -> Iterator[IO[bytes]]:
    """A file to write, through gzip where its form says so: without a time and a name, so that the same rows give the
    same bytes."""
    with path.open("wb") as raw:
        if not form.gzipped:
            yield raw
            return
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            yield file  # type: ignore[misc] # as good as one


def in_order(columns: Iterable[str], kept: KeptColumns | None) -> list[str]:
    """The columns with those that are kept behind what a row is known by. Raises ValueError where both have a name."""
    own, names = list(columns), [] if kept is None else list(kept.names)
    if twice := [name for name in names if name in own]:
        raise ValueError(f"there are two columns {twice[0]!r}: rename that of the input")
    first = [column for column in own if column in FIRST]
    return [*first, *names, *own[len(first) :]]


def _write_lines(file: IO[bytes], rows: Iterable[Row], heads: Heads) -> None:
    for row in chain(map(head_line, heads), rows):
        file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _write_csv(file: IO[bytes], rows: Iterable[Row], kept: KeptColumns | None) -> None:
    columns = in_order(columns_of(rows), kept)
    cells: Iterable[Row] = map(flat, rows)
    if kept is not None:
        cells = ({**own, **more} for own, more in zip(cells, kept.cells(), strict=False))
    write_csv(file, columns, cells)


def _write_beside(path: Path, heads: Heads) -> None:
    if not heads:
        beside(path).unlink(missing_ok=True)
        return
    with replacing(beside(path)) as made:
        made.write_text(json.dumps(list(heads), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
