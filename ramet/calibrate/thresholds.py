"""Thresholds: from which probability on an answer is taken, for a precision or a recall that is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import precision_recall_curve

from ramet.agree.answer import KINDS
from ramet.agree.intervals import wilson
from ramet.calibrate.decisions import FloatArray, LabelledDecisions
from ramet.decide.calibration import HeldOut, Threshold, Wanted

_NOUL = KINDS.index("noul")
_DIGITS = 1e6  # a threshold is a millionth's multiple, rounded down: what lies on it is taken, also elsewhere


@dataclass(frozen=True, slots=True)
class Wish:
    """What thresholds are to reach."""

    wanted: Wanted
    value: float

    def threshold(self, taken: FloatArray, good: npt.NDArray[np.bool_]) -> float | None:
        """That with the most recall, or the most precision, among those that reach the wish on these decisions; None
        where none does. taken [D]: the probabilities that a threshold is held against; good [D]: whether it is right to
        take the answer."""
        if not good.any():
            return None
        precision, recall, at = precision_recall_curve(good, taken)
        reached, other = (precision, recall) if self.wanted == "precision" else (recall, precision)
        fit = np.flatnonzero(reached[:-1] >= self.value - 1e-12)
        if not len(fit):
            return None
        best = fit[np.lexsort((at[fit], other[fit]))[-1]]
        return math.floor(float(at[best]) * _DIGITS) / _DIGITS


@dataclass(slots=True)
class HeldOutCounts:
    """Of the decisions that a threshold was not chosen by: those taken, those that were good to take, and both."""

    n_taken: int = 0
    n_good: int = 0
    n_both: int = 0

    def add(self, at: float, taken: FloatArray, good: npt.NDArray[np.bool_]) -> None:
        reached = taken >= at
        self.n_taken += int(reached.sum())
        self.n_good += int(good.sum())
        self.n_both += int((reached & good).sum())

    def checked(self, at: float, wish: Wish) -> Threshold:
        """The threshold with what it reached."""
        precision, recall = (_share(self.n_both, of) for of in (self.n_taken, self.n_good))
        return Threshold(at=at, wanted=wish.wanted, value=wish.value, precision=precision, recall=recall)


def takings(decisions: LabelledDecisions, p: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """What thresholds are held against [D], and whether the answer is good to take [D]: of a noul the probability of
    true, and whether it is; of others that of the likeliest option, and whether it is the right one."""
    is_noul = decisions.kind == _NOUL
    taken = np.where(is_noul, p[:, 0], p.max(axis=1))
    return taken, np.where(is_noul, decisions.right == 0, p.argmax(axis=1) == decisions.right)


def _share(count: int, of: int) -> HeldOut | None:
    return HeldOut(count=count, of=of, interval=wilson(count, of)) if of else None
