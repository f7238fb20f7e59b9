"""The bench of elastic decoding as pictures: the time of a token against requests a second, and chunks over time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.bench.elastic.report import AUTO, ElasticReport, Rows
from ramet.plot import BLUE, FAINT, GREEN, RED, curve, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FIXED = {"2": "#C9C9C9", "4": "#B0B0B0", "8": "#959595", "16": "#787878", "32": "#585858"}
_COLOURS = {**_FIXED, "next": GREEN, "block": RED, AUTO: BLUE}


def draw(found: ElasticReport, directory: Path) -> None:
    """p90.svg, over_time.svg and throughput.svg, as far as there is something to draw."""
    directory.mkdir(parents=True, exist_ok=True)
    traces = [row for row in found.traces if row["mode"] == AUTO]
    title = f"{found.model.partition(';')[0]}; {found.hardware.partition(',')[0]}"
    if found.capacities:
        write(directory / "p90.svg", (7.0, 4.6), title, partial(capacity, found), title_size=10)
    if found.cells:
        write(directory / "throughput.svg", (7.0, 4.6), title, partial(throughput, found.cells), title_size=10)
    if traces:
        write(directory / "over_time.svg", (8.0, 5.2), title, partial(over_time, traces), title_size=10)


def capacity(found: ElasticReport, figure: Figure) -> None:
    """A line for each mode, auto on top of the others; crosses: what the engine measured, of the requests that came,
    but for rates far beyond what is served."""
    axes = figure.add_subplot()
    rows = sorted(found.capacities, key=lambda row: row["mode"] == AUTO)
    for row in rows:
        points = list(zip(row["rates"], row["p90_ms"], strict=True))
        curve(axes, points, _COLOURS[row["mode"]], row["mode"])
    for row in found.traces:
        axes.plot(row["requests_s"], row["p90_ms"], color=_COLOURS[row["mode"]], marker="x", ms=8, mew=2)
    limit = rows[0]["limit_ms"]
    axes.axhline(limit, color=FAINT, lw=1, ls="--")
    most = 1.6 * max(row["requests_s"] for row in rows)
    axes.set(xlim=(0, most or None), ylim=(0, 2 * limit), xlabel="requests a second")
    axes.set(ylabel="ms a token, nine of ten requests")
    _named(axes, rows[0]["dataset"])


def throughput(cells: Rows, figure: Figure) -> None:
    """Of the first data set, by batch."""
    axes = figure.add_subplot()
    rows = [row for row in cells if row["dataset"] == cells[0]["dataset"]]
    batches = [row["batch"] for row in rows]
    for name, colour in _COLOURS.items():
        curve(axes, [(row["batch"], row["tokens_s"][name]) for row in rows], colour, name)
    axes.plot(batches, [row["bound_tokens_s"] for row in rows], color=FAINT, lw=1, ls="--", label="bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="replies at once", ylabel="tokens a second")
    _named(axes, rows[0]["dataset"])


def over_time(traces: Rows, figure: Figure) -> None:
    """Of the last trace: sizes of chunks above, replies below."""
    trace = traces[-1]
    steps = trace["over_time"]
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(steps["ended_s"], steps["sizes"], color=BLUE, lw=0.8)
    below.plot(steps["ended_s"], steps["replies"], color=RED, lw=1.2)
    above.set(ylim=(0, None), ylabel="rows of a reply")
    above.set_title(f"{trace['requests_s']:.3g} requests a second; simulated commits, measured steps")
    below.set(ylim=(0, None), xlabel="seconds", ylabel="replies")


def _named(axes: Axes, dataset: str) -> None:
    axes.set_title(f"{dataset}: simulated commits over measured steps")
    axes.legend(loc="upper left", ncols=2)
