"""The bench of elastic decoding as pictures: the time of a token against requests a second, and chunks over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ramet.bench.elastic_found import Found
from ramet.bench.picture import FAINT, STYLE
from ramet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AUTO, _BLOCK, _NEXT = "#0072B2", "#D55E00", "#009E73"
_FIXED = {"2": "#C9C9C9", "4": "#B0B0B0", "8": "#959595", "16": "#787878", "32": "#585858"}
_COLOURS = {"auto": _AUTO, "block": _BLOCK, "next": _NEXT, **_FIXED}


def draw(found: Found, directory: Path) -> None:
    """p90.svg, over_time.svg and throughput.svg, as far as there is something to draw."""
    directory.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        if found.capacities:
            _save(directory / "p90.svg", _figure(found, lambda axes: capacity(axes, found)))
        if found.cells:
            _save(directory / "throughput.svg", _figure(found, lambda axes: throughput(axes, found)))
        if any(row["mode"] == "auto" for row in found.traces):
            _save(directory / "over_time.svg", _over_time(found))


def capacity(axes: Axes, found: Found) -> None:
    """A line for each mode, auto on top of the others; crosses: what the engine measured, of the requests that came,
    but for rates far beyond what is served."""
    rows: list[dict[str, Any]] = sorted(found.capacities, key=lambda row: row["mode"] == "auto")
    for row in rows:
        axes.plot(row["rates"], row["p90_ms"], color=_COLOURS[row["mode"]], lw=2, marker="o", ms=4, label=row["mode"])
    traced: list[dict[str, Any]] = found.traces
    for row in traced:
        axes.plot(row["requests_s"], row["p90_ms"], color=_COLOURS[row["mode"]], marker="x", ms=8, mew=2)
    limit = rows[0]["limit_ms"]
    axes.axhline(limit, color=FAINT, lw=1, ls="--")
    most = 1.6 * max(row["requests_s"] for row in rows)
    axes.set(xlim=(0, most or None), ylim=(0, 2 * limit), xlabel="requests a second")
    axes.set(ylabel="ms a token, nine of ten requests")
    axes.set_title(f"{rows[0]['dataset']}: simulated commits over measured steps")
    axes.legend(loc="upper left", ncols=2)


def throughput(axes: Axes, found: Found) -> None:
    """Of the first data set, by batch."""
    first = found.cells[0]["dataset"]
    rows: list[dict[str, Any]] = [row for row in found.cells if row["dataset"] == first]
    batches = [row["batch"] for row in rows]
    for name in (*_FIXED, "next", "block", "auto"):
        rates = [row["tokens_s"][name] for row in rows]
        axes.plot(batches, rates, color=_COLOURS[name], lw=2, marker="o", ms=4, label=name)
    bound = [row["bound_tokens_s"] for row in rows]
    axes.plot(batches, bound, color=FAINT, lw=1, ls="--", label="bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="replies at once", ylabel="tokens a second")
    axes.set_title(f"{first}: simulated commits over measured steps")
    axes.legend(loc="upper left", ncols=2)


def _over_time(found: Found) -> Figure:
    """Sizes of chunks above, replies below."""
    row: dict[str, Any] = [row for row in found.traces if row["mode"] == "auto"][-1]
    told = row["over_time"]
    figure = _empty(found, (8.0, 5.2))
    above = figure.add_subplot(2, 1, 1)
    below = figure.add_subplot(2, 1, 2, sharex=above)
    above.plot(told["ended_s"], told["sizes"], color=_AUTO, lw=0.8)
    below.plot(told["ended_s"], told["replies"], color=_BLOCK, lw=1.2)
    above.set(ylim=(0, None), ylabel="rows of a reply")
    above.set_title(f"{row['requests_s']:.3g} requests a second; simulated commits, measured steps")
    below.set(ylim=(0, None), xlabel="seconds", ylabel="replies")
    return figure


def _figure(found: Found, part: Any) -> Figure:
    figure = _empty(found, (7.0, 4.6))
    part(figure.add_subplot())
    return figure


def _empty(found: Found, size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, dpi=150)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    figure.suptitle(
        f"{found.model.partition(';')[0]}; {found.hardware.partition(',')[0]}", fontsize=10, x=0.01, ha="left"
    )
    return figure


def _save(path: Path, figure: Figure) -> None:
    with replacing(path) as made:
        figure.savefig(made, metadata={"Date": None})
