"""The bench of reads as a picture: how long a read takes as more clients ask, against the reads a second."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.bench.core.plot import BLUE, FAINT, RED, write
from ramet.bench.reads.report import ONE, TWO, ReadLoad, ReadsReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(found: ReadsReport, path: Path) -> None:
    """Write the picture, a part for each length of prompts."""
    by_form: dict[str, list[ReadLoad]] = {}
    for load in found.loads:
        by_form.setdefault(load.form, []).append(load)

    def curves(figure: Figure) -> None:
        for i, (form, loads) in enumerate(by_form.items(), 1):
            curve(figure.add_subplot(1, len(by_form), i), form, loads)

    write(path, (5.5 * max(1, len(by_form)), 4.6), found.model.partition(";")[0], curves)


def curve(axes: Axes, form: str, loads: list[ReadLoad]) -> None:
    """A point for each number of clients."""
    for name, colour in ((ONE, BLUE), (TWO, RED)):
        rates = [load.rate(name) or 0.0 for load in loads]
        ms = [statistics.median(load.ms[name]) for load in loads]
        axes.plot(rates, ms, color=colour, lw=2, marker="o", ms=5, label=name)
        for load, x, y in zip(loads, rates, ms, strict=True):
            axes.annotate(str(load.n_clients), (x, y), (5, 5), textcoords="offset points", color=FAINT, fontsize=8)
    axes.set(xlim=(0, None), ylim=(0, None), xlabel="reads a second", ylabel="median milliseconds of a read")
    axes.set_title(f"{form} tokens; clients beside the points")
    axes.legend(loc="upper left")
