"""One number for how sure an answer is, computed from its probabilities; and the mean of a score.

The word has several meanings in the field, so three are on offer (`ramet.request.Confidence`):
typesafe, the formulas of TypeSafe's own adapter, the default; vllm, the top probability times the
label mass; top, the top probability alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ramet.request import Confidence

Probabilities = npt.NDArray[np.float64]


def of_choice(probabilities: Probabilities, mass: float, formula: Confidence) -> float:
    """Confidence in [0, 1] of a choice; typesafe: (m - 1/n) / (1 - 1/n), m the top probability, 1 for one option."""
    top = float(probabilities.max())
    if formula != "typesafe":
        return _plain(top, mass, formula)
    n = len(probabilities)
    return 1.0 if n == 1 else _clip((top - 1 / n) / (1 - 1 / n))


def of_score(probabilities: Probabilities, mass: float, formula: Confidence) -> float:
    """Confidence in [0, 1] of a score; typesafe: 1 minus the mean distance from the mode k over that of even odds.

    That is max(0, 1 - sum p_i |i - k| / D) with D = (1/n) sum |i - (n - 1)/2|, and 1 for one level.
    """
    if formula != "typesafe":
        return _plain(float(probabilities.max()), mass, formula)
    n = len(probabilities)
    if n == 1:
        return 1.0
    levels = np.arange(n)
    spread = float(probabilities @ np.abs(levels - int(probabilities.argmax())))
    even = float(np.abs(levels - (n - 1) / 2).mean())
    return _clip(1 - spread / even)


def expectation(probabilities: Probabilities) -> float:
    """The mean level, sum i p_i."""
    return float(probabilities @ np.arange(len(probabilities)))


def _plain(top: float, mass: float, formula: Confidence) -> float:
    return _clip(top * mass if formula == "vllm" else top)


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
