"""A run's head: what its rows were made with. In JSON Lines it is a line of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ramet.errors import InvalidRequest

HEAD = "run"  # the only name of a line that is a head


def head_line(head: dict[str, Any]) -> dict[str, Any]:
    """The line that holds a head."""
    return {HEAD: head}


def head_of(data: dict[str, Any]) -> dict[str, Any] | None:
    """The head that a line holds; None of a row."""
    head = data.get(HEAD)
    return head if len(data) == 1 and isinstance(head, dict) else None


def beside(path: Path) -> Path:
    """Where the heads of a CSV lie: a comment in it would be a row to most programs that read one."""
    return path.with_name(f"{path.name}.run.json")


def heads_beside(path: Path) -> list[dict[str, Any]]:
    """The heads of the runs that wrote a CSV; none where no file has them. Raises InvalidRequest for a file that no
    run wrote."""
    try:
        found = json.loads(beside(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise InvalidRequest(f"{beside(path)} is no JSON: {error}; it says how {path.name} was made") from error
    if not isinstance(found, list) or not all(isinstance(head, dict) for head in found):
        raise InvalidRequest(f"{beside(path)} has no heads of runs; move it away")
    return found
