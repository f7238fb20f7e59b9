"""The bench of reads as tables for people; the JSON has every sample."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import cast

from rich.box import SIMPLE
from rich.table import Table

from ramet.bench.reads_found import AGAIN, ISOLATED, JOINT, ONE, PEER, TWO, Found, Load, p95, saved
from ramet.bench.samples import Row
from ramet.bench.table import short


def parts(found: Found) -> Iterator[Table]:
    """Reads one after the other, under load, of several questions; and what all of it rests on."""
    yield latency(found)
    yield floors(found)
    if found.loads:
        yield loads(found)
    if found.questions:
        yield questions(found)
    yield facts(found)


def latency(found: Found) -> Table:
    caption = "ms: medians and 95th percentiles, by turns; repeat: two steps measured again"
    heads = ["prompt+canvas", "reads", "one pass", "p95", "two steps", "p95", "saved", "repeat"]
    table = _table("a read, one client", caption, heads + ["transformers", "/ one pass"] * (found.peer is not None))
    for row in found.latency:
        cells = [row.shape, str(row.notes["reads"]), *_ms(row, ONE), *_ms(row, TWO), _percent(saved(row))]
        cells.append(_percent(_over(row, AGAIN, TWO), sign=True))
        if found.peer is not None:
            cells += [_ms(row, PEER)[0], _ratio(row, PEER, ONE)]
        table.add_row(*cells)
    return table


def floors(found: Found) -> Table:
    flop, n_bytes = (cast(float, found.rates[name]) for name in ("flop_per_s", "bytes_per_s"))
    caption = f"ms, at {flop / 1e12:.3g} TFLOP/s and {n_bytes / 1e9:.3g} GB/s, measured"
    heads = ["prompt+canvas", "weights' bytes", "arithmetic", "one pass", "/ the larger"]
    table = _table("what the products of a read take at least", caption, heads)
    for row in found.latency:
        least = [cast(float, row.notes[name]) for name in ("bytes_ms", "arithmetic_ms")]
        one_ms = row.median(ONE)
        assert one_ms is not None
        table.add_row(row.shape, *map(short, least), short(one_ms), f"[bold]{one_ms / max(least):.2f}[/]")
    return table


def loads(found: Found) -> Table:
    caption = "reads a second, and ms of a read; gain: of one pass; repeat: two steps measured again"
    heads = ["prompt+canvas", "clients", "one pass", "ms", "p95", "two steps", "ms", "p95", "gain", "repeat"]
    heads += ["transformers"] * (found.peer is not None)
    heads += ["cost of 1000", "two steps"] * (found.price_per_month is not None)
    table = _table("reads under load", caption, heads)
    for load in found.loads:
        cells = [load.form, str(load.n_clients), *_rate(load, ONE), *_rate(load, TWO)]
        cells += [_percent(load.gain(ONE, TWO), sign=True), _percent(load.gain(AGAIN, TWO), sign=True)]
        if found.peer is not None:
            cells.append(_rate(load, PEER)[0])
        if found.price_per_month is not None:
            cells += [_cost(load.cost(name, found.price_per_month)) for name in (ONE, TWO)]
        table.add_row(*cells)
    return table


def questions(found: Found) -> Table:
    heads = ["prompt", "one joint canvas", "p95", "rows", "a canvas each", "p95", "rows", "/ joint"]
    table = _table("several questions, one pass", "ms: medians and 95th percentiles; rows of the pass", heads)
    for row in found.questions:
        rows = cast(dict[str, int], row.notes["rows"])
        joint, each = ((*_ms(row, name), str(rows[name])) for name in (JOINT, ISOLATED))
        table.add_row(row.shape, *joint, *each, _ratio(row, ISOLATED, JOINT))
    return table


def facts(found: Found) -> Table:
    """Engine steps, differences, and how long everything took to be ready."""
    table = Table.grid(padding=(0, 2))
    lines = {f"steps, {row.shape}": _steps(row) for row in found.latency}
    for form in dict.fromkeys(load.form for load in found.loads):
        loads = [load for load in found.loads if load.form == form]
        lines[f"under load, {form}"] = "steps a read, one pass and two steps: " + ", ".join(map(_shared, loads))
    lines["answers"] = (
        f"float32 twin: {_moved(found.difference)}; "
        f"as measured: {'; '.join(_moved(cast(dict[str, float], row.notes['difference'])) for row in found.latency)}"
    )
    lines["ready after"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.start_s.items())
    for name, text in lines.items():
        table.add_row(f"[dim]{name}[/]", text)
    return table


def _steps(row: Row) -> str:
    steps, n = cast(dict[str, int], row.notes["steps"]), row.notes["reads"]
    return f"{steps[ONE]} of the engine for {n} reads in one pass, {steps[TWO]} in two steps"


def _shared(load: Load) -> str:
    one, two = (load.steps_a_read(name) for name in (ONE, TWO))
    return f"{one:.2f} and {two:.2f} with {load.n_clients}"


def _moved(difference: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2g}" for name, value in difference.items())


def _table(title: str, caption: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption, box=SIMPLE)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left")
    return table


def _ms(row: Row, name: str) -> tuple[str, str]:
    """Median and 95th percentile."""
    median = row.median(name)
    return ("-", "-") if median is None else (f"[bold]{short(median)}[/]", short(p95(row.samples[name])))


def _rate(load: Load, name: str) -> tuple[str, str, str]:
    """Reads a second, median and 95th percentile of their milliseconds."""
    rate = load.rate(name)
    if rate is None:
        return "-", "-", "-"
    return f"[bold]{rate:.3g}[/]", short(statistics.median(load.ms[name])), short(p95(load.ms[name]))


def _over(row: Row, name: str, base: str) -> float | None:
    ratio = row.ratio(name, base)
    return None if ratio is None else ratio - 1


def _ratio(row: Row, name: str, base: str) -> str:
    ratio = row.ratio(name, base)
    return "-" if ratio is None else f"{ratio:.2f}"


def _percent(part: float | None, *, sign: bool = False) -> str:
    return "-" if part is None else f"{part:+.1%}" if sign else f"{part:.1%}"


def _cost(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:.3g}"
