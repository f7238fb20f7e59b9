"""CSV as RFC 4180 has it: a line of names, then rows of cells, parted by commas and in quotes where they need them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ramet.errors import InvalidRequest
from ramet.quoting import repeated, shown
from ramet.rows.text import Advance, fault, numbered_lines

MAX_CELL = 16 << 20  # characters, as of a request


def csv_columns(path: Path) -> list[str]:
    """The names in the first line. Raises InvalidRequest for a name that is empty, or there twice."""
    return next(_records(path, lambda _: None))[1]


def csv_rows(path: Path, advance: Advance) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row's cells by their columns, with the number of the line on which it begins. Raises InvalidRequest that
    names the line of a row with other cells than there are columns, and of quotes that do not close."""
    records = _records(path, advance)
    _, columns = next(records)
    for number, cells in records:
        if len(cells) != len(columns):
            raise fault(path, number, f"has {_n_cells(cells)}, and the first line names {len(columns)} columns")
        yield number, dict(zip(columns, cells, strict=True))


def _records(path: Path, advance: Advance) -> Iterator[tuple[int, list[str]]]:
    """The line of names, and each line that holds something, with the number of the line where it begins."""
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader((line for _, line in numbered_lines(path, advance)), strict=True)
    begun, n_records = 1, 0
    try:
        for cells in reader:
            if cells:
                n_records += 1
                if n_records == 1:
                    _check_names(path, begun, cells)
                yield begun, cells
            begun = reader.line_num + 1
    except csv.Error as error:
        raise fault(path, begun, f"is no CSV: {error}") from error
    if n_records == 0:
        raise InvalidRequest(f"{path} is empty: the first line of CSV names the columns")


def _check_names(path: Path, number: int, names: Sequence[str]) -> None:
    if "" in names:
        remedy = "give it one (pandas leaves out its index with index=False)"
        raise fault(path, number, f"column {names.index('') + 1} has no name: {remedy}")
    if (twice := repeated(names)) is not None:
        raise fault(path, number, f"names two columns {twice}: rename one of them")


def _n_cells(cells: Sequence[str]) -> str:
    return "1 cell" if len(cells) == 1 else f"{len(cells)} cells"


def write_csv(file: IO[bytes], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the columns of each row. Nothing is an empty cell; objects and arrays are JSON; numbers have all digits
    that they need. Raises ValueError for what no text can hold."""
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell_of(column, row.get(column)) for column in columns])
    text.flush()
    text.detach()


def cell_of(column: str, value: Any) -> str:
    """A value as a cell. Raises ValueError for bytes, which no text holds."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list, bool)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        raise ValueError(f"column {shown(column)} holds bytes, and CSV is text")
    return str(value) if not isinstance(value, float) else repr(value)
