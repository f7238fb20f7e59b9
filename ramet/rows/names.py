"""Names of columns: a value's path in its row, the steps parted by dots.

A step with a dot, a quotation mark, or nothing in it is a JSON string: `answers."a.b".noul`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

NESTED = ("answers", "usage", "error", "gold")  # fields whose entries have columns of their own
_REMEMBERED = 1 << 14  # names, which are the same few in every row
_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')
_DEPTHS = {"answers": 3, "usage": 2, "error": 2, "gold": 2}
_BY_NAME = ("probabilities", "x_standard_error")  # statistics that have a number an option


@lru_cache(_REMEMBERED)
def column_of(steps: tuple[str, ...]) -> str:
    """The name of the column at a path."""
    return ".".join(json.dumps(s, ensure_ascii=False) if not s or set(s) & set('."') else s for s in steps)


@lru_cache(_REMEMBERED)
def steps_of(column: str) -> tuple[str, ...]:
    """The path of a column. A name that is no path, or leads into no nested field, is one step."""
    if column.partition(".")[0] not in NESTED:
        return (column,)
    found = _STEP.findall(column)
    if ".".join(found) != column:
        return (column,)
    try:
        return tuple(json.loads(step) if step.startswith('"') else step for step in found)
    except ValueError:
        return (column,)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row's values by their columns. Of `answers` each statistic of a question has one, or one an option; what
    lies deeper stays whole."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        _spread(found, (name,), value)
    return found


def _spread(found: dict[str, Any], steps: tuple[str, ...], value: Any) -> None:
    depth = _DEPTHS.get(steps[0], 1) + (steps[0] == "answers" and len(steps) > 2 and steps[2] in _BY_NAME)
    if isinstance(value, Mapping) and value and len(steps) < depth:
        for name, inner in value.items():
            _spread(found, (*steps, name), inner)
    else:
        found[column_of(steps) if steps[0] in NESTED else steps[0]] = value


def nested(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The row whose values `cells` has by their columns: the inverse of `flat`. Cells that hold nothing in columns of
    nested fields are no part of it. Raises ValueError where a column lies within another's value."""
    row: dict[str, Any] = {}
    for column, value in cells.items():
        *outer, last = steps_of(column)
        if outer and value is None:
            continue
        place = row
        for step in outer:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise ValueError(f"column {column!r} lies within the value of another")
        if last in place:
            raise ValueError(f"column {column!r} is there twice")
        place[last] = value
    return row
