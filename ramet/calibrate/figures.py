"""Figures of how good probabilities are: accuracy, calibration error, Brier score and log loss, with intervals."""

from __future__ import annotations

import numpy as np

from ramet.agree.intervals import LEVEL, drawn_sums, ratios, wilson
from ramet.calibrate.decisions import FloatArray, IntColumn, LabelledDecisions
from ramet.decide.calibration import Figure, Quality

N_BINS = 15


def quality(decisions: LabelledDecisions, log_p: FloatArray) -> Quality:
    """Of at least one decision, at log-probabilities [D, N]. Bootstrap intervals draw whole rows, as `ramet agree`
    does."""
    rows = np.arange(len(decisions))
    p = np.exp(log_p)
    right = p.argmax(axis=1) == decisions.right
    brier = (p**2).sum(axis=1) - 2 * p[rows, decisions.right] + 1
    loss = -log_p[rows, decisions.right]
    numbers = np.unique(decisions.row, return_inverse=True)[1]
    ones = np.ones(len(decisions))
    sums: FloatArray = np.stack([np.bincount(numbers, weights=c) for c in (brier, ones, loss, ones)], axis=1)
    of_brier, of_loss = ratios(sums)
    return Quality(
        decisions=len(decisions),
        accuracy=Figure(value=float(right.mean()), interval=wilson(int(right.sum()), len(right))),
        calibration_error=_calibration_error(p.max(axis=1), right.astype(np.float64), numbers),
        brier=Figure(value=float(brier.mean()), interval=of_brier),
        log_loss=Figure(value=float(loss.mean()), interval=of_loss),
    )


def bins(confidence: FloatArray) -> IntColumn:
    """The number [D] of the bin, among N_BINS of equal width, of each likeliest option's probability."""
    found: IntColumn = np.minimum((confidence * N_BINS).astype(np.intp), N_BINS - 1)
    return found


def _calibration_error(confidence: FloatArray, right: FloatArray, row: IntColumn) -> Figure:
    """The mean distance of confidence and accuracy over the bins, each weighted by its decisions. Noise makes it
    larger: an interval begins at the value at the latest."""
    n_rows, excess = int(row.max()) + 1, confidence - right
    sums = np.zeros((n_rows, N_BINS + 1))
    np.add.at(sums, (row, bins(confidence)), excess)
    sums[:, -1] = np.bincount(row, minlength=n_rows)
    value = _mean_excess(sums.sum(axis=0, keepdims=True))[0]
    if n_rows < 2:
        return Figure(value=float(value), interval=None)
    low, high = np.quantile(_mean_excess(drawn_sums(sums)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Figure(value=float(value), interval=(float(min(low, value)), float(max(high, value))))


def _mean_excess(sums: FloatArray) -> FloatArray:
    """From the sums [R, bins + 1] of confidence less accuracy in each bin, and of decisions."""
    found: FloatArray = np.abs(sums[:, :-1]).sum(axis=1) / sums[:, -1]
    return found
