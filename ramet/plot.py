"""How pictures look, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ramet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT = "#222222", "#9AA0A6"
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"  # colour-blind people see the difference too
MAX_VECTORS = 2000  # points of a file of vectors; more become an image in it

# Without the salt and the date, the same figures give the same bytes of SVG.
STYLE: dict[Any, Any] = {
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "grid.color": "#ECECEC",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,
    "svg.hashsalt": "ramet",
}


def write(
    path: Path, size: tuple[float, float], title: str, draw: Callable[[Figure], None], title_size: int = 12
) -> None:
    """Write a figure of `size` inches that `draw` fills in, in the format that the file's ending names."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=150)
        figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        figure.suptitle(title, fontsize=title_size, x=0.01, ha="left")
        draw(figure)
        with replacing(path) as made:
            figure.savefig(made, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def curve(axes: Axes, points: Sequence[tuple[float, float]], colour: str, name: str) -> None:
    """A line with a dot at each point (x, y)."""
    axes.plot([x for x, _ in points], [y for _, y in points], color=colour, lw=2, marker="o", ms=4, label=name)
