"""What a row of a file is known by, and errors that name its line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.errors import InvalidRequest
from ramet.rows.form import form_of
from ramet.rows.text import fault as fault_at
from ramet.values import as_json


@dataclass(frozen=True, slots=True)
class Identity:
    """What a row is known by: its `id`, or where it has none its `index`, counted from 0 among lines with something."""

    id: Any
    index: int

    def key(self, *, by_line: bool) -> str:
        """Equal for rows that belong together. CSV has text alone, so 17 and "17" are one id."""
        if by_line or self.id is None:
            return f"#{self.index}"
        return f"id {self.id if isinstance(self.id, str) else json.dumps(self.id, sort_keys=True)}"

    def as_json(self) -> dict[str, Any]:
        return {"index": self.index} if self.id is None else {"id": self.id, "index": self.index}

    def __str__(self) -> str:
        return f"#{self.index}" if self.id is None else as_json(self.id)


def fault(path: Path, line: int, message: str) -> InvalidRequest:
    """An error at a line of a file, or at a row of Parquet."""
    return fault_at(path, line, message, what="row" if form_of(path).kind == "parquet" else "line")


def check_new(path: Path, line: int, identity: Identity, earlier: int | None) -> None:
    """Refuses a row that an `earlier` line has already."""
    if earlier is not None:
        what = f"index {identity.index}" if identity.id is None else f"id {identity}"
        raise fault(
            path, line, f"has the {what} of line {earlier}; give each row an id of its own, "
            "or match rows by their place in the input with --by line",
        )  # fmt: skip
