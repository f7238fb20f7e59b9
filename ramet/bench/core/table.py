"""Tables for people, made of the JSON of a run, which has every sample."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

Columns = Sequence[tuple[str, str]]  # heads, and how a row's values look there


class _Cells(string.Formatter):
    """Formats as `str.format` does, with a dash for what a row does not have, and with the forms of `_FORMS`."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value = kwargs
        for key in field_name.replace("]", "").split("["):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is None:
            return "-"
        form = _FORMS.get(format_spec)
        return super().format_field(value, format_spec) if form is None else form(value)


def table(
    title: str, columns: Columns, rows: Iterable[Mapping[str, Any]], caption: str | None = None, n_left: int = 1
) -> Table:
    """A line for each row; the first n_left columns are aligned on the left."""
    made, cells = Table(title=title, caption=caption, box=SIMPLE), _Cells()
    for i, (head, _) in enumerate(columns):
        made.add_column(head, justify="left" if i < n_left else "right")
    for row in rows:
        made.add_row(*(cells.vformat(form, (), row) for _, form in columns))
    return made


def facts(lines: Mapping[str, str]) -> Table:
    """A name and a text a line."""
    made = Table.grid(padding=(0, 2))
    for name, text in lines.items():
        made.add_row(f"[dim]{name}[/]", text)
    return made


def hardware(about: Mapping[str, object]) -> Table:
    """What was measured and on what."""
    return facts({name: escape(_text(value)) for name, value in about.items()})


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, list):
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
