"""The bench of growing states as a picture: what a step costs, and what is kept, against history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ramet.bench.states.report import StatesReport
from ramet.plot import BLUE, FAINT, MAX_VECTORS, RED, curve, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(found: StatesReport, path: Path) -> None:
    """Write the picture."""

    def parts(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        costs(left, found)
        kept(right, found)

    write(path, (11.0, 4.8), _headline(found), parts)


def costs(axes: Axes, found: StatesReport) -> None:
    """Every step as a point, and the medians of steps of about equal history as a line."""
    buckets = found.buckets()
    for name, colour in (("fresh", RED), ("resumed", BLUE)):
        points = [(s.n_history, getattr(s, name).ms) for s in found.steps if getattr(s, name) is not None]
        medians = [(b["n_history"], b[f"{name}_ms"]) for b in buckets if b[f"{name}_ms"] is not None]
        if points:
            many = len(found.steps) > MAX_VECTORS
            axes.scatter(
                [x for x, _ in points], [y for _, y in points], s=9, lw=0, alpha=0.3, color=colour, rasterized=many
            )
            curve(axes, medians, colour, name)
    axes.set(xlim=(0, None), ylim=(0, None), xlabel="history, tokens", ylabel="milliseconds of a step")
    axes.set_title("What a step costs")
    axes.legend(loc="upper left")


def kept(axes: Axes, found: StatesReport) -> None:
    """Bytes kept, and what it would take to keep every step's state by itself."""
    seen = [s.n_seen for s in found.steps]
    own = [(s.n_asked * found.row_bytes + i * found.state_bytes) / 2**20 for i, s in enumerate(found.steps, 1)]
    stored = [s.bytes / 2**20 for s in found.steps]
    axes.plot(seen, own, color=RED, lw=1.5, ls="--", label="every step by itself")
    axes.plot(seen, stored, color=BLUE, lw=2, label="kept")
    top = 1.15 * max(stored)
    if found.evicted:
        axes.axhline(found.capacity / 2**20, color=FAINT, lw=1, ls=":", label="the budget")
        top = max(top, 1.1 * found.capacity / 2**20)
    axes.set(xlim=(0, None), ylim=(0, top), xlabel="tokens seen, each once", ylabel="MiB kept")
    axes.set_title("What is kept")
    axes.legend(loc="lower right")


def _headline(found: StatesReport) -> str:
    n = len({s.trajectory for s in found.steps})
    difference = "" if found.difference is None else f"; resumed and fresh differ by {found.difference:.2g} at most"
    return f"{found.model}: {n} trajectories of {len(found.steps) // n} steps{difference}"
