"""The bench of reads as a picture: how long a read takes as more clients ask, against the reads a second."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.bench.reads.report import ONE, TWO, ReadLoad, ReadsReport
from ramet.plot import BLUE, FAINT, RED, curve, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(found: ReadsReport, path: Path) -> None:
    """Write the picture, a part for each length of prompts."""
    forms = list(dict.fromkeys(load.form for load in found.loads))

    def parts(figure: Figure) -> None:
        for i, form in enumerate(forms, 1):
            axes = figure.add_subplot(1, len(forms), i)
            by_clients(axes, form, [load for load in found.loads if load.form == form])

    write(path, (5.5 * max(1, len(forms)), 4.6), found.model.partition(";")[0], parts)


def by_clients(axes: Axes, form: str, loads: list[ReadLoad]) -> None:
    """A point for each number of clients."""
    for name, colour in ((ONE, BLUE), (TWO, RED)):
        points = [(load.rate(name) or 0.0, statistics.median(load.ms[name])) for load in loads]
        curve(axes, points, colour, name)
        for load, point in zip(loads, points, strict=True):
            axes.annotate(str(load.n_clients), point, (5, 5), textcoords="offset points", color=FAINT, fontsize=8)
    axes.set(xlim=(0, None), ylim=(0, None), xlabel="reads a second", ylabel="median milliseconds of a read")
    axes.set_title(f"{form} tokens; clients beside the points")
    axes.legend(loc="upper left")
