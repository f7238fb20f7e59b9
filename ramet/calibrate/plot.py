"""A reliability diagram: how often answers of a probability are right, before and after, on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure as Picture
from sklearn.calibration import calibration_curve

from ramet.agree.answer import KINDS
from ramet.calibrate.decisions import FloatArray, IntColumn
from ramet.calibrate.figures import N_BINS
from ramet.calibrate.fit import Fit, Mask
from ramet.decide.calibration import BeforeAfter
from ramet.plot import BLUE, FAINT, RED, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"before": RED, "after": BLUE}


def draw(fit: Fit, quality: dict[str, BeforeAfter], title: str, path: Path) -> None:
    """Write the picture, in the format that the file's ending names: a column for each type."""
    groups = [name for name in quality if name != "all"]

    def fill(figure: Picture) -> None:
        grid = figure.subplots(2, len(groups), squeeze=False, height_ratios=[3, 1], sharex=True)
        for name, (above, below) in zip(groups, grid.T, strict=True):
            _panel(above, below, fit, fit.decisions.kind == KINDS.index(name), name, quality[name])

    write(path, (4.6 * len(groups), 6.2), title, fill)


def _panel(above: Axes, below: Axes, fit: Fit, mask: Mask, name: str, told: BeforeAfter) -> None:
    """Accuracy by confidence, and below it how many decisions have which confidence."""
    right = fit.decisions.right[mask]
    above.plot([0, 1], [0, 1], color=FAINT, lw=1)
    for side, log_p, found in (("before", fit.before, told.before), ("after", fit.after, told.after)):
        confidence, is_right = _answers(log_p[mask], right)
        share, mean = calibration_curve(is_right, confidence, n_bins=N_BINS)
        label = f"{side}: error {found.calibration_error.value:.3f}"
        above.plot(mean, share, marker="o", ms=4, lw=1.5, color=COLOURS[side], label=label)
        below.hist(confidence, bins=N_BINS, range=(0, 1), color=COLOURS[side], alpha=0.5)
    above.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of right answers")
    above.set_title(f"{name} ({len(right)} decisions)")
    above.legend(loc="upper left")
    below.set(xlabel="probability of the likeliest option", ylabel="decisions")


def _answers(log_p: FloatArray, right: IntColumn) -> tuple[FloatArray, FloatArray]:
    """The probability [D] of the likeliest option, and whether it is right [D]."""
    best = log_p.argmax(axis=1)
    return np.clip(np.exp(log_p.max(axis=1)), 0.0, 1.0), (best == right).astype(np.float64)
