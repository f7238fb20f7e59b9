"""Parquet, written a group of rows at a time; columns of another Parquet file keep their types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ramet.rows.columns import ValueType, as_type, columns_of
from ramet.rows.form import form_of
from ramet.rows.names import flat
from ramet.rows.parquet_rows import BATCH, HEADS, open_parquet
from ramet.rows.write import KeptColumns, in_order

_TYPES = {"bool": pa.bool_(), "int": pa.int64(), "long": pa.int64(), "float": pa.float64(), "text": pa.string()}
_GROUP = 64 * BATCH  # rows of a group, which are in memory together


def write_parquet(
    path: Path, rows: Iterable[Mapping[str, Any]], heads: Sequence[dict[str, Any]], kept: KeptColumns | None
) -> None:
    """Write the rows, their heads as metadata. Raises ValueError for what no column holds."""
    types = columns_of(rows)
    order = in_order(types, kept)
    others = _KeptTables(kept)
    named = {field.name: field for field in [*_schema(types), *others.schema]}
    schema = pa.schema([named[name] for name in order], {HEADS: json.dumps(list(heads)).encode()})
    left = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(left, _GROUP)):
            columns = _columns(group, types) | others.take(len(group))
            writer.write_table(pa.table([columns[name] for name in order], schema=schema))


def _schema(types: Mapping[str, ValueType]) -> Any:
    return pa.schema([(column, _TYPES[kind]) for column, kind in types.items()])


def _columns(group: Sequence[Mapping[str, Any]], types: Mapping[str, ValueType]) -> dict[str, Any]:
    cells = list(map(flat, group))
    return {
        column: pa.array([as_type(column, row.get(column), kind) for row in cells], _TYPES[kind])
        for column, kind in types.items()
    }


class _KeptTables:
    """The kept columns, so many rows of them at a time: those of Parquet in their types, those of CSV as text."""

    def __init__(self, kept: KeptColumns | None) -> None:
        self._names = [] if kept is None else list(kept.names)
        self.schema = pa.schema([(name, pa.string()) for name in self._names])
        self._tables: Iterator[Any] = iter(())
        if kept is not None and form_of(kept.source).kind == "parquet":
            with open_parquet(kept.source) as file:
                self.schema = pa.schema([file.schema_arrow.field(name).remove_metadata() for name in self._names])
            self._tables = _tables(kept)
        elif kept is not None:
            self._tables = (pa.Table.from_pylist([cells], self.schema) for cells in kept.cells())
        self._left = self.schema.empty_table()

    def take(self, n_rows: int) -> dict[str, Any]:
        """The columns of the next rows, which there are."""
        if not self._names:
            return {}
        parts = [self._left]
        while sum(part.num_rows for part in parts) < n_rows:
            parts.append(next(self._tables))
        table = pa.concat_tables(parts)
        self._left = table.slice(n_rows)
        return {name: table.column(name).slice(0, n_rows) for name in self._names}


def _tables(kept: KeptColumns) -> Iterator[Any]:
    """Every so many of the rows, batch by batch."""
    begin = 0  # of the batch, in rows
    with open_parquet(kept.source) as file:
        for batch in file.iter_batches(BATCH, columns=list(kept.names)):
            chosen = range(-begin % kept.every, batch.num_rows, kept.every)
            begin += batch.num_rows
            yield pa.Table.from_batches([batch]).select(list(kept.names)).take(pa.array(chosen, pa.int64()))
