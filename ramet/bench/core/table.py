"""Tables for people, made of the JSON of a run, which has every sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

_COLUMN = re.compile(r"(?:(?P<head>[^=:]*)=)?(?P<path>[^:!]+)(?::(?P<form>[^!]*))?(?P<bold>!?)")


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    keys: tuple[str, ...]
    form: str
    style: str

    @classmethod
    def parse(cls, text: str) -> _Column:
        found = _COLUMN.fullmatch(text)
        assert found is not None, text
        keys = tuple(found["path"].split("."))
        head = keys[-1].replace("_over_", " / ").replace("_", " ") if found["head"] is None else found["head"]
        return cls(head, keys, found["form"] or "", "bold" if found["bold"] else "")

    def value(self, row: Any) -> Any:
        for key in self.keys:
            row = row.get(key) if isinstance(row, Mapping) else None
        return row

    def text(self, row: Any) -> str:
        value = self.value(row)
        if value is None:
            return "-"
        form = _FORMS.get(self.form)
        return format(value, self.form) if form is None else form(value)


def table(title: str, columns: str, rows: Iterable[Mapping[str, Any]], caption: str | None = None) -> Table:
    """A line for each row. `columns` names the value of each column: "shape, ms.ours:spread, one batch=ms.batch:.1f!".

    A value's keys have dots between them. Behind a colon stands a format of Python's or one of _FORMS, and an
    exclamation mark makes the column bold. The head is the last key, or what stands before an equals sign. A value that
    a row lacks is a dash, and a column that all rows lack is left out.
    """
    rows, made = list(rows), Table(title=title, caption=caption, box=SIMPLE)
    found = [_Column.parse(text) for text in columns.split(", ")]
    found = [column for column in found if any(column.value(row) is not None for row in rows)]
    for column in found:
        is_text = any(isinstance(column.value(row), str) for row in rows)
        made.add_column(column.head, justify="left" if is_text else "right", style=column.style)
    for row in rows:
        made.add_row(*(column.text(row) for column in found))
    return made


def facts(lines: Mapping[str, object]) -> Table:
    """A name and a value a line."""
    made = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        made.add_row(f"[dim]{name}[/]", escape(_text(value)))
    return made


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def _spread(summary: dict[str, Any]) -> str:
    low, high = summary["quartiles"]
    return f"[bold]{_short(summary['median'])}[/] [dim]±{50 * (high - low) / summary['median']:.0f}%[/]"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "ms": _short,  # milliseconds in three digits
    "spread": _spread,  # a median, and half the spread of the middle half
    "over": lambda ratio: f"{ratio - 1:+.1%}",  # by what part it is more
}
