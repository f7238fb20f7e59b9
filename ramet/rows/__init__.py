"""Rows of files: JSON Lines, CSV and Parquet, read and written by every command in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramet.rows.cells import is_field, value_of
from ramet.rows.csv_rows import csv_rows
from ramet.rows.form import form_of
from ramet.rows.json_rows import json_rows
from ramet.rows.names import nested
from ramet.rows.text import Advance, fault

REMEDY = "a line is a JSON object"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one at a time, in the form that its name's ending says.

    A line of JSON Lines is what it says. Of a table each column is a field: `answers`, `usage`, `error` and `gold` are
    put together from columns such as `gold.topic`, and text is read as JSON in the columns of fields that are no text,
    such as `questions`. A `state` or a `prompt` that is an object or an array in JSON is one; all other columns of CSV
    are text. Nothing in the cell of such a field is no field. Lines that say how a run was made are passed over.

    Raises InvalidRequest that names the file, the line (the row of Parquet) and what is wrong with it; OSError.
    """
    for _, row in numbered_rows(path):
        yield row


def numbered_rows(
    path: Path, advance: Advance = lambda _: None, remedy: str = REMEDY, heads: list[dict[str, Any]] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """As `read_rows`, each row with the number of the line on which it begins. `advance` gets the bytes that were
    read, `heads` the heads of the runs that wrote the file; `remedy` ends the message about a line that is no JSON."""
    heads = [] if heads is None else heads
    form = form_of(path)
    if form.kind == "json":
        yield from json_rows(path, advance, remedy, heads)
        return
    heads += table_heads(path)
    what = "line" if form.kind == "csv" else "row"
    for number, cells in table_rows(path, advance):
        try:
            values = {column: _value(column, cell) for column, cell in cells.items()}
            row = nested(
                {column: value for column, value in values.items() if value is not None or not is_field(column)}
            )
        except ValueError as error:
            raise fault(path, number, str(error), what=what) from error
        yield number, row


def table_rows(path: Path, advance: Advance = lambda _: None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row's cells by their columns as the table has them, with its number. Raises InvalidRequest."""
    if form_of(path).kind == "csv":
        return csv_rows(path, advance)
    from ramet.rows.parquet_rows import parquet_rows

    return parquet_rows(path, advance)


def table_columns(path: Path) -> list[str]:
    """The names of a table's columns. Raises InvalidRequest."""
    if form_of(path).kind == "csv":
        from ramet.rows.csv_rows import csv_columns

        return csv_columns(path)
    from ramet.rows.parquet_rows import parquet_columns

    return parquet_columns(path)


def table_heads(path: Path) -> list[dict[str, Any]]:
    """The heads of the runs that wrote a table: of CSV those of the file beside it."""
    if form_of(path).kind == "csv":
        from ramet.rows.head import heads_beside

        return heads_beside(path)
    from ramet.rows.parquet_rows import parquet_heads

    return parquet_heads(path)


def _value(column: str, cell: Any) -> Any:
    """A cell's value. Raises ValueError that names the column."""
    if not isinstance(cell, str):
        return cell
    try:
        return value_of(column, cell)
    except ValueError as error:
        raise ValueError(f"column {column!r}: {error}") from error
