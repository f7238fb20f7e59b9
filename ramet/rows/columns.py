"""Columns: which there are of some rows, in which order, and what their values are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ramet.rows.csv_rows import cell_of
from ramet.rows.names import flat, steps_of

# A `long` is a whole number that no double has.
ValueType = Literal["bool", "int", "long", "float", "text"]
# Fields by their place in a table: first what a row is known by, then what is neither of these, last the answers.
FIRST = ("index", "request", "id")
LAST = (
    "model",
    "answers",
    "text",
    "finish_reason",
    "stop_reason",
    "logprobs",
    "joint",
    "usage",
    "x_calibration",
    "error",
)
_EXACT = 1 << 53  # up to which a double has every whole number
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, ValueType]:
    """The columns that hold all values of the rows, in their order. One whose values are of several types, or objects
    and arrays, is text; whole numbers and others are doubles, where these have them all."""
    found: dict[str, ValueType | None] = {}
    for row in rows:
        for column, value in flat(row).items():
            found[column] = _joined(found.get(column), _type_of(value))
    return {column: found[column] or "text" for column in sorted(found, key=_rank)}


def as_type(column: str, value: Any, kind: ValueType) -> Any:
    """A value as the column's type has it. Raises ValueError for what no text holds."""
    if value is None or kind in ("bool", "int", "long"):
        return value
    return float(value) if kind == "float" else cell_of(column, value)


def _type_of(value: Any) -> ValueType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if abs(value) <= _EXACT else "long" if _LEAST <= value <= _MOST else "text"
    return "float" if isinstance(value, float) else "text"


def _joined(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == {"int", "long"}:
        return "long"
    return "float" if {a, b} == {"int", "float"} else "text"


def _rank(column: str) -> int:
    """Sorting is stable: those of one field stay in the order in which they came."""
    field = steps_of(column)[0]
    if field in FIRST:
        return FIRST.index(field)
    return len(FIRST) + (1 + LAST.index(field) if field in LAST else 0)
