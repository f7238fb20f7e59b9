"""Quoting: how much errors repeat of a caller's text, so that an error stays small however much was sent."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

QUOTED = 80  # letters of a name or a value at most

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = QUOTED
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 1, 2, 2


def shown(value: Any) -> str:
    """A value as Python writes it, cut where that is long."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return f"{type(value).__name__} too large to be written"


def cut(text: str, most: int = QUOTED) -> str:
    """A text, of which no more than `most` letters are left."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def repeated(names: Iterable[str]) -> str | None:
    """The first name that has come before, as Python writes it; None where each comes once."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return shown(name)
        seen.add(name)
    return None
