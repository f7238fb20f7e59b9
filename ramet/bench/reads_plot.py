"""The bench of reads as a picture: how long a read takes as more clients ask, against the reads a second."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ramet.bench.picture import FAINT, STYLE
from ramet.bench.reads_found import ONE, TWO, Found, Load
from ramet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {ONE: "#0072B2", TWO: "#D55E00"}


def draw(found: Found, path: Path) -> None:
    """Write the picture, a part for each length of prompts, in the format that the file's ending names."""
    by_form: dict[str, list[Load]] = {}
    for load in found.loads:
        by_form.setdefault(load.form, []).append(load)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.5 * max(1, len(by_form)), 4.6), dpi=150)
        figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        figure.suptitle(found.model.partition(";")[0], fontsize=12, x=0.01, ha="left")
        for i, (form, loads) in enumerate(by_form.items(), 1):
            curve(figure.add_subplot(1, len(by_form), i), form, loads)
        with replacing(path) as made:
            figure.savefig(made, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def curve(axes: Axes, form: str, loads: list[Load]) -> None:
    """A point for each number of clients."""
    for name, colour in _COLOURS.items():
        rates = [load.rate(name) or 0.0 for load in loads]
        ms = [statistics.median(load.ms[name]) for load in loads]
        axes.plot(rates, ms, color=colour, lw=2, marker="o", ms=5, label=name)
        for load, x, y in zip(loads, rates, ms, strict=True):
            axes.annotate(str(load.n_clients), (x, y), (5, 5), textcoords="offset points", color=FAINT, fontsize=8)
    axes.set(xlim=(0, None), ylim=(0, None), xlabel="reads a second", ylabel="median milliseconds of a read")
    axes.set_title(f"{form} tokens; clients beside the points")
    axes.legend(loc="upper left")
