"""The bench of growing states as a picture: what a step costs, and what is kept, against history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ramet.bench.picture import FAINT, MAX_VECTORS, STYLE
from ramet.bench.steps import Steps
from ramet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESUMED, FRESH = "#0072B2", "#D55E00"


def draw(found: Steps, path: Path) -> None:
    """Write the picture, in the format that the file's ending names."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 4.8), dpi=150)
        figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        figure.suptitle(_headline(found), fontsize=12, x=0.01, ha="left")
        left, right = figure.subplots(1, 2)
        costs(left, found)
        kept(right, found)
        with replacing(path) as made:
            figure.savefig(made, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def costs(axes: Axes, found: Steps) -> None:
    """Every step as a point, and the medians of steps of about equal history as a line."""
    steps, buckets = found.steps, found.buckets()
    image = len(steps) > MAX_VECTORS
    fresh = [(s.n_history, s.fresh.ms) for s in steps if s.fresh is not None]
    resumed = [(s.n_history, s.resumed.ms) for s in steps]
    sides: dict[str, tuple[str, list[tuple[int, float]], list[tuple[float, float]]]] = {
        "fresh": (FRESH, fresh, [(b.n_history, b.fresh_ms) for b in buckets if b.fresh_ms is not None]),
        "resumed": (RESUMED, resumed, [(b.n_history, b.resumed_ms) for b in buckets]),
    }
    for name, (colour, points, medians) in sides.items():
        if points:
            history, ms = zip(*points, strict=True)
            axes.scatter(history, ms, s=9, lw=0, alpha=0.3, color=colour, rasterized=image)
            axes.plot(*zip(*medians, strict=True), color=colour, lw=2, marker="o", ms=4, label=name)
    axes.set(xlim=(0, None), ylim=(0, None), xlabel="history, tokens", ylabel="milliseconds of a step")
    axes.set_title("What a step costs")
    axes.legend(loc="upper left")


def kept(axes: Axes, found: Steps) -> None:
    """Bytes kept, and what it would take to keep every step's state by itself."""
    seen = [s.n_seen for s in found.steps]
    own = [(s.n_asked * found.row_bytes + i * found.state_bytes) / 2**20 for i, s in enumerate(found.steps, 1)]
    stored = [s.bytes / 2**20 for s in found.steps]
    axes.plot(seen, own, color=FRESH, lw=1.5, ls="--", label="every step by itself")
    axes.plot(seen, stored, color=RESUMED, lw=2, label="kept")
    top = 1.15 * max(stored)
    if found.evicted:
        axes.axhline(found.capacity / 2**20, color=FAINT, lw=1, ls=":", label="the budget")
        top = max(top, 1.1 * found.capacity / 2**20)
    axes.set(xlim=(0, None), ylim=(0, top), xlabel="tokens seen, each once", ylabel="MiB kept")
    axes.set_title("What is kept")
    axes.legend(loc="lower right")


def _headline(found: Steps) -> str:
    n = len({s.trajectory for s in found.steps})
    difference = "" if found.difference is None else f"; resumed and fresh differ by {found.difference:.2g} at most"
    return f"{found.model}: {n} trajectories of {len(found.steps) // n} steps{difference}"
