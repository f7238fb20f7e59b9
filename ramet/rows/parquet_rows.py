"""Parquet, by pyarrow: read and written a batch of rows at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramet.errors import InvalidRequest
from ramet.quoting import repeated, shown
from ramet.rows.text import Advance

# Of a struct every row has the keys of all rows, so it cannot say what is absent from one of them.
WHOLE = frozenset(("state", "prompt", "questions", "gold"))
BATCH = 256  # rows at a time
HEADS = b"ramet"  # the key of the file's metadata that has the heads


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def parquet_heads(path: Path) -> list[dict[str, Any]]:
    """The heads of the runs that wrote a file; none where its metadata has none."""
    with open_parquet(path) as file:
        found = (file.schema_arrow.metadata or {}).get(HEADS)
    try:
        heads = [] if found is None else json.loads(found)
    except ValueError:  # of another program
        return []
    return heads if isinstance(heads, list) and all(isinstance(head, dict) for head in heads) else []


def parquet_rows(path: Path, advance: Advance) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row's values by their columns, with its number from 1. Times and decimals are text, in all their digits.
    Raises InvalidRequest for a column of bytes, which no row can have, and for structs where absent keys count."""
    with open_parquet(path) as file:
        number, size = 0, path.stat().st_size
        spelled = [_spelled(path, field) for field in file.schema_arrow]
        for batch in file.iter_batches(BATCH):
            columns = [spell(column).to_pylist() for spell, column in zip(spelled, batch.columns, strict=True)]
            for values in zip(*columns, strict=True):
                number += 1
                yield number, dict(zip(batch.schema.names, values, strict=True))
            advance(size * batch.num_rows // max(file.metadata.num_rows, 1))


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """The file as pyarrow has it. Raises InvalidRequest for one that is no Parquet, or names a column twice."""
    try:
        with pq.ParquetFile(path) as file:
            if (twice := repeated(file.schema_arrow.names)) is not None:
                raise InvalidRequest(f"{path} names two columns {twice}: rename one of them")
            yield file
    except (pa.ArrowException, OSError) as error:  # the latter for a damaged end
        raise InvalidRequest(f"{path} is no Parquet that can be read: {error}") from error


def _spelled(path: Path, field: Any) -> Any:
    """What makes a column's values those that JSON has."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if _has(kind, _is_bytes):
        raise InvalidRequest(f"{path}: column {shown(field.name)} holds bytes, which no row can have: leave it out")
    if field.name in WHOLE and _has(kind, pa.types.is_struct):
        raise InvalidRequest(
            f"{path}: column {shown(field.name)} holds structs, whose absent keys are lost: store JSON"
        )
    if pa.types.is_nested(kind) and _has(kind, _is_spelled):
        raise InvalidRequest(
            f"{path}: column {shown(field.name)} holds times or decimals inside of others: store them as text"
        )
    if _is_spelled(kind):
        return lambda column: pc.cast(column, pa.string())
    return lambda column: column


def _is_bytes(kind: Any) -> bool:
    found: bool = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return found


def _is_spelled(kind: Any) -> bool:
    """Whether values become text."""
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _has(kind: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether a type is one, or holds one."""
    if is_it(kind):
        return True
    return pa.types.is_nested(kind) and any(_has(kind.field(i).type, is_it) for i in range(kind.num_fields))
