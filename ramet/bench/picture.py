"""How pictures look: colours, and what all of them set."""

from __future__ import annotations

from typing import Any

INK, FAINT = "#222222", "#9AA0A6"
MAX_VECTORS = 2000  # points of a file of vectors; more become an image in it

# Without the salt and the date, the same figures give the same bytes of SVG.
STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT, "axes.labelcolor": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.grid": True, "grid.color": "#ECECEC", "axes.axisbelow": True,
    "legend.frameon": False, "text.parse_math": False, "svg.hashsalt": "ramet",
}  # fmt: skip
