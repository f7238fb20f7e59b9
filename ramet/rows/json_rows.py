"""JSON Lines: an object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ramet.quoting import repeated
from ramet.rows.head import head_of
from ramet.rows.text import Advance, fault, numbered_lines

Row = dict[str, Any]


def json_rows(path: Path, advance: Advance, remedy: str, heads: list[Row]) -> Iterator[tuple[int, Row]]:
    """Each object with its line's number; lines without anything are passed over. A run's heads go to `heads`."""
    for number, line in numbered_lines(path, advance):
        if not line.strip():
            continue
        data = _object(path, number, line, remedy)
        if (head := head_of(data)) is not None:
            heads.append(head)
        else:
            yield number, data


def _object(path: Path, number: int, line: str, remedy: str) -> Row:
    try:
        data = DECODER.decode(line.strip())
        if "\\u" in line:  # which may spell half a surrogate pair: no text, and nothing that can be printed
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise fault(path, number, f"is no JSON ({error}); {remedy}") from error
    if not isinstance(data, dict):
        raise fault(path, number, f"is no JSON object; {remedy}")
    return data


def _once(pairs: list[tuple[str, Any]]) -> Row:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError(f"an object has the name {repeated(name for name, _ in pairs)} twice")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant)
