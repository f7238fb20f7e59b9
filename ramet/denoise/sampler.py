"""What a step of denoising makes of what was drawn: which rows are sure, and whether the canvas is finished."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramet.denoise.canvas_config import CanvasConfig
from ramet.tree import BoolArray, FloatArray, IntArray


def temperature(settings: CanvasConfig, step: int) -> float:
    """Of a canvas' step, from 0: from t_max down to one step above t_min. `max_steps` are those of the settings, also
    for a canvas that takes fewer: it goes the first part of the same way. In float32, as the logits that it divides."""
    left = np.float32(settings.max_steps - step) / np.float32(settings.max_steps)
    return float(np.float32(settings.t_min) + np.float32(settings.t_max - settings.t_min) * left)


def accepted(entropy: FloatArray, bound: float) -> BoolArray:
    """Which rows keep what they drew, by their entropies [N]: the surest, as long as the entropies of those before sum
    to no more than `bound`. That sum bounds what the rows drawn together could have told of each other. One row at
    least; of equal entropies the first row's counts as the lower."""
    order = np.argsort(entropy, kind="stable")
    before = np.zeros(len(entropy))
    np.cumsum(entropy[order[:-1]], dtype=np.float64, out=before[1:])
    kept = np.zeros(len(entropy), np.bool_)
    kept[order] = before <= bound
    return kept


def settled(best: IntArray, before: Sequence[IntArray], entropy: FloatArray, settings: CanvasConfig) -> bool:
    """Whether a canvas is finished: its likeliest ids [N] are those of all the steps before that count, and it is
    sure of them. `before` are the last `stability_threshold`, fewer where there were not as many."""
    stable = len(before) == settings.stability_threshold and all(np.array_equal(best, each) for each in before)
    return stable and float(entropy.mean(dtype=np.float64)) < settings.confidence_threshold
