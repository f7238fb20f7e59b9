"""Commit curves of which steps of whole blocks commit a mean with a standard deviation."""

from __future__ import annotations

from functools import cache

import numpy as np

from ramet.bench.elastic.commit_curves import Curve
from ramet.denoise.commits import counted

_BLOCK = 32


def moments(curve: Curve, block: int = _BLOCK) -> tuple[float, float]:
    """Mean and standard deviation of what a step commits, of the steps that take whole blocks to their end."""
    counts = (1 - curve.runs) * counted(np.tile(curve.passing(block), (3, 1)))
    counts[np.arange(block + 1), np.arange(block + 1)] += curve.runs
    counts_squared = counts @ np.arange(block + 1) ** 2.0
    reached = np.zeros(block + 1)  # how often a step begins with so many masked rows
    reached[block] = 1.0
    for left in range(block, 0, -1):
        reached[:left] += reached[left] * counts[left, left:0:-1]
    n_steps = float(reached[1:].sum())
    mean, squares = block / n_steps, float(reached[1:] @ counts_squared[1:]) / n_steps
    return mean, max(squares - mean**2, 0.0) ** 0.5


@cache
def fitted(mean: float, deviation: float | None = None, block: int = _BLOCK) -> Curve:
    """The curve of which a step of whole blocks commits that much. Without a deviation it has no runs; the nearest,
    where none reaches it."""
    if deviation is None:
        return _of_mean(mean, 0.0, block)
    low, high = 0.0, 1.0
    for _ in range(18):
        runs = (low + high) / 2
        curve = _of_mean(mean, runs, block)
        if moments(curve, block)[1] < deviation and curve.first > 0:
            low = runs
        else:
            high = runs
    return _of_mean(mean, low, block)


def _of_mean(mean: float, runs: float, block: int) -> Curve:
    low, high = 0.0, 1.0
    for _ in range(18):
        first = (low + high) / 2
        low, high = (first, high) if moments(Curve(first, runs), block)[0] < mean else (low, first)
    return Curve(low, runs)
