"""Rows as tables for people; the JSON has everything."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from ramet.bench.report import Report
from ramet.bench.samples import Row

_CAPTION = "medians, and half the spread of the middle half"


def hardware(facts: Mapping[str, object]) -> Table:
    """What was measured and on what, as two columns."""
    table = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        table.add_row(f"[dim]{key}[/]", escape(_text(value)))
    return table


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def beside_transformers(report: Report) -> Table:
    """Ramet beside transformers and the bare products; milliseconds."""
    heads = (
        "shape", "ours", "its pass", "one batch", "/ ours", "a loop", "/ ours", "floor", "pass / floor",
        "/ all products", "packing, us a branch",
    )  # fmt: skip
    table = _table("one decision in process, ms", heads)
    for row in report.rows:
        table.add_row(
            row.shape, _ms(row, "ours"), _ms(row, "pass"), _ms(row, "batch"), _ratio(row, "batch", "ours"),
            _ms(row, "loop"), _ratio(row, "loop", "ours"), _ms(row, "floor"), _ratio(row, "pass", "floor"),
            _note(row, "pass_over_all_products"), _note(row, "pack_us_per_branch"),
        )  # fmt: skip
    return table


def beside_flide(report: Report) -> Table:
    """Ramet beside Flide, and the limits of the device; milliseconds of a round."""
    heads = (
        "shape", "ours", "its round", "its pass", "flide", "/ round", "its replay", "/ pass", "floor", "linear limit",
        "attention limit", "pass / limits",
    )  # fmt: skip
    table = _table("one round in process, ms", heads)
    for row in report.rows:
        table.add_row(
            row.shape, _ms(row, "ours"), _ms(row, "round"), _ms(row, "pass"), _ms(row, "flide"),
            _ratio(row, "flide", "round"),
            _ms(row, "flide replay"), _ratio(row, "flide replay", "pass"), _ms(row, "floor"),
            _note(row, "linear_limit_ms"), _note(row, "attention_limit_ms"), _note(row, "pass_over_limits"),
        )  # fmt: skip
    return table


def over_http(report: Report) -> Table:
    """Two servers; milliseconds of a request, and requests a second under load."""
    peer = report.peer.split()[0]
    heads = ("shape", "ours", peer, "/ ours", "ours, requests/s", f"{peer}, requests/s", "ours / it")
    table = _table("one decision over HTTP, ms", heads)
    for row in report.rows:
        ours, theirs = _rate(row, "ours"), _rate(row, peer)
        rates = [f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"] if ours and theirs else ["", "", ""]
        table.add_row(row.shape, _ms(row, "ours"), _ms(row, peer), _ratio(row, peer, "ours"), *rates)
    return table


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, caption=_CAPTION, box=SIMPLE)
    for head in heads:
        table.add_column(head, justify="left" if head == "shape" else "right")
    return table


def _ms(row: Row, name: str) -> str:
    median = row.median(name)
    if median is None:
        return "-"
    low, high = row.middle_half(name)
    return f"[bold]{short(median)}[/] [dim]±{50 * (high - low) / median:.0f}%[/]"


def _note(row: Row, name: str) -> str:
    value = row.notes.get(name)
    return f"{value:.2f}" if isinstance(value, float) else "-"


def _ratio(row: Row, name: str, base: str) -> str:
    ratio = row.ratio(name, base)
    return "-" if ratio is None else f"{ratio:.2f}"


def _rate(row: Row, name: str) -> float | None:
    rates = cast(dict[str, list[float]], row.notes.get("requests_per_s", {}))
    return statistics.median(rates[name]) if rates.get(name) else None


def short(ms: float) -> str:
    """Milliseconds in three digits."""
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"
