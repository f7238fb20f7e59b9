"""DiffusionGemma's sampler: the temperature of a step, which rows a step accepts, and whether the canvas is finished.

The rules are those of its generation_config.json (EntropyBoundSamplerConfig) and of transformers' generate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramet.denoise.canvas_config import CanvasConfig
from ramet.tree import BoolArray, FloatArray, IntArray


def temperature(settings: CanvasConfig, step: int) -> float:
    """The temperature of a canvas' step, counted from 0: t_min + (t_max - t_min) * (1 - step / max_steps). A canvas
    that takes fewer steps than `max_steps` has the first ones of the same schedule. In float32, as the logits."""
    left = np.float32(settings.max_steps - step) / np.float32(settings.max_steps)
    return float(np.float32(settings.t_min) + np.float32(settings.t_max - settings.t_min) * left)


def accepted(entropy: FloatArray, bound: float) -> BoolArray:
    """Which rows keep their drawn ids, by their entropies [N] in nats: in the order of entropy, each row whose
    predecessors' entropies sum to no more than `bound`. That sum bounds the information that the rows have about each
    other, which drawing them together ignores. Accepts one row at least."""
    order = np.argsort(entropy, kind="stable")
    before = np.zeros(len(entropy))
    np.cumsum(entropy[order[:-1]], dtype=np.float64, out=before[1:])
    kept = np.zeros(len(entropy), np.bool_)
    kept[order] = before <= bound
    return kept


def settled(best: IntArray, before: Sequence[IntArray], entropy: FloatArray, settings: CanvasConfig) -> bool:
    """Whether a canvas is finished: its likeliest ids `best` [N] are the same as in the last `stability_threshold`
    steps, which `before` holds (fewer of them where there were not as many), and the mean entropy is low enough."""
    stable = len(before) == settings.stability_threshold and all(np.array_equal(best, each) for each in before)
    return stable and float(entropy.mean(dtype=np.float64)) < settings.confidence_threshold
