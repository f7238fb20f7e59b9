"""The bench of the same bits as tables for people; the JSON has every difference that is listed and every sample."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.table import Table

from ramet.bench.table import short
from ramet.bench.tallies import Invariance

_NAMES = {"mode": "batch-invariant", "plain": "without"}


def parts(found: Invariance) -> Iterator[Table]:
    """How many answers differ, which, and what the mode costs."""
    yield differences(found)
    if found.n_faults:
        yield faults(found)
    if found.rows:
        yield costs(found)


def differences(found: Invariance) -> Table:
    table = Table(title=f"answers with other bits than alone, {found.n_loads} loads", box=SIMPLE)
    table.add_column("level")
    for head in ("mode", "answers", "differ", "largest difference"):
        table.add_column(head, justify="left" if head == "mode" else "right")
    for level, tallies in found.tallies.items():
        for name, tally in tallies.items():
            differ = f"[bold]{tally.differ}[/]" if name == "mode" else str(tally.differ)
            table.add_row(level, _NAMES[name], str(tally.answers), differ, f"{tally.largest:.2g}")
    return table


def faults(found: Invariance) -> Table:
    """The first differences in the mode."""
    table = Table(title="the first that differ in the mode", box=SIMPLE)
    for head in ("level", "load", "tokens a round", "probe", "question", "difference"):
        table.add_column(head, justify="left" if head == "level" else "right")
    for level, tallies in found.tallies.items():
        for d in tallies["mode"].listed:
            table.add_row(
                level, str(d.load), str(d.max_round_tokens), str(d.probe), str(d.question), f"{d.largest:.2g}"
            )
    return table


def costs(found: Invariance) -> Table:
    table = Table(title="what the mode costs, ms", caption="medians of runs by turns", box=SIMPLE)
    for head in ("shape", "batch-invariant", "without", "ratio"):
        table.add_column(head, justify="left" if head == "shape" else "right")
    for row in found.rows:
        mode, plain = row.median("mode"), row.median("plain")
        assert mode is not None
        assert plain is not None
        table.add_row(row.shape, short(mode), short(plain), f"{mode / plain:.2f}")
    return table
