"""What two runs differ in, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ramet.agree.report import Report
from ramet.cli.table import printable
from ramet.quoting import cut
from ramet.values import as_json

N_SHOWN = 60  # letters of a value


def parts(report: Report) -> Iterator[RenderableType]:
    """The differences, or which file does not say how it was made; nothing where neither does."""
    silent = [name for name, run in (("a", report.a), ("b", report.b)) if not run.heads]
    if report.differences is None:
        if len(silent) == 1:
            yield Text(f"{silent[0]} does not say how it was made, so what the runs differ in is not known", "yellow")
        return
    if not report.differences:
        yield Text("the runs differ in nothing that they say of themselves", style="dim")
        return
    table = Table(title="what the runs differ in", title_justify="left", title_style="bold", box=SIMPLE,
                  header_style="dim", pad_edge=False)  # fmt: skip
    for head in ("", "a", "b"):
        table.add_column(head, overflow="fold")
    for each in report.differences:
        table.add_row(Text(printable(each.name)), _said(each.a), _said(each.b))
    yield table


def _said(values: Sequence[Any]) -> Text:
    """What a run says, several things where it went on elsewhere."""
    words = ("\N{EM DASH}" if value is None else cut(printable(as_json(value)), N_SHOWN) for value in values)
    return Text("; then ".join(words))
