"""JSON objects of a file, one a line, and what a row of it is known by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.errors import InvalidRequest
from ramet.values import as_json

Advance = Callable[[int], None]  # gets how many bytes were read


@dataclass(frozen=True, slots=True)
class Identity:
    """What a row is known by: its `id`, or where it has none its `index`, counted from 0 among lines with something."""

    id: Any
    index: int

    def key(self, *, by_line: bool) -> str:
        """Equal for rows that belong together."""
        if by_line or self.id is None:
            return f"#{self.index}"
        return f"id {json.dumps(self.id, sort_keys=True)}"

    def as_json(self) -> dict[str, Any]:
        return {"index": self.index} if self.id is None else {"id": self.id, "index": self.index}

    def __str__(self) -> str:
        return f"#{self.index}" if self.id is None else as_json(self.id)


def read_objects(path: Path, advance: Advance, remedy: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line's number, from 1, and its object. Raises InvalidRequest naming file, line and remedy."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            advance(len(line))
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                if b"\\u" in line:  # which may spell half a surrogate pair: no text, and nothing that can be printed
                    json.dumps(data, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                raise fault(path, number, f"is no JSON ({error}); {remedy}") from error
            if not isinstance(data, dict):
                raise fault(path, number, f"is no JSON object; {remedy}")
            yield number, data


def fault(path: Path, line: int, message: str) -> InvalidRequest:
    return InvalidRequest(f"{path}, line {line}: {message}")


def check_new(path: Path, line: int, identity: Identity, earlier: int | None) -> None:
    """Refuses a row that an `earlier` line has already."""
    if earlier is not None:
        what = f"index {identity.index}" if identity.id is None else f"id {identity}"
        raise fault(
            path, line, f"has the {what} of line {earlier}; give each row an id of its own, "
            "or match rows by their place in the input with --by line",
        )  # fmt: skip
