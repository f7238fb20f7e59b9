"""Fit: temperatures and thresholds of all rows, and what they reach on rows that they were not fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedGroupKFold

from ramet.agree.answer import KINDS
from ramet.calibrate.decisions import LEAST, FloatArray, LabelledDecisions
from ramet.calibrate.figures import quality
from ramet.calibrate.temperatures import FittedTemperatures
from ramet.calibrate.thresholds import HeldOutCounts, Wish, takings
from ramet.decide.calibration import BeforeAfter, Kind, Threshold

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HowToFit:
    """per_question: temperatures of their own for questions with enough rows. wish: of thresholds, if any."""

    n_folds: int = 5
    seed: int = 0
    per_question: bool = False
    wish: Wish | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """`temperatures` of all rows; `thresholds` by the question's place, None where none reaches what is wanted. Each
    row's held-out log-probabilities [D, N] are those of a fit to the other folds; `before` without any fit."""

    decisions: LabelledDecisions
    how: HowToFit
    temperatures: FittedTemperatures
    thresholds: Mapping[int, Threshold | None]
    before: FloatArray
    after: FloatArray

    @classmethod
    def of(cls, decisions: LabelledDecisions, own: Mapping[Kind, float], how: HowToFit) -> Fit:
        """own: the model's temperatures by type, without a calibration. Raises InvalidRequest."""
        decisions.check()
        after, counts = decisions.log_p.copy(), dict[int, HeldOutCounts]()
        for held_out in _folds(decisions, how):
            fitted = FittedTemperatures.of(decisions.only(~held_out), per_question=how.per_question)
            scaled = decisions.scaled(fitted.each(decisions))
            after[held_out] = scaled[held_out]
            for place, chosen in _thresholds(decisions, scaled, ~held_out, how.wish).items():
                if chosen is not None:
                    mine = held_out & (decisions.question == place)
                    counts.setdefault(place, HeldOutCounts()).add(chosen, *_takings(decisions, scaled, mine))
        whole = FittedTemperatures.of(decisions, per_question=how.per_question)
        everywhere = np.ones(len(decisions), np.bool_)
        scaled = decisions.scaled(whole.each(decisions))
        thresholds = {
            place: None if at is None or how.wish is None else counts.get(place, HeldOutCounts()).checked(at, how.wish)
            for place, at in _thresholds(decisions, scaled, everywhere, how.wish).items()
        }
        temperatures = np.array([own[kind] for kind in KINDS])[decisions.kind]
        return cls(decisions, how, whole, thresholds, decisions.scaled(temperatures), after)

    def quality(self) -> dict[str, BeforeAfter]:
        """Of all decisions, and of each type."""
        kinds = {kind: self.decisions.kind == place for place, kind in enumerate(KINDS)}
        found = {"all": self.of_some(np.ones(len(self.decisions), np.bool_))}
        return found | {kind: self.of_some(mask) for kind, mask in kinds.items() if mask.any()}

    def of_some(self, mask: Mask) -> BeforeAfter:
        """Of the decisions of a mask [D], which has some."""
        some = self.decisions.only(mask)
        return BeforeAfter(before=quality(some, self.before[mask]), after=quality(some, self.after[mask]))


def _folds(decisions: LabelledDecisions, how: HowToFit) -> Iterator[Mask]:
    """Masks [D] of the rows that are held out. Decisions about the same state and question are never apart, and each
    type is spread evenly."""
    splits = StratifiedGroupKFold(how.n_folds, shuffle=True, random_state=how.seed)
    for _, test in splits.split(decisions.log_p, decisions.kind, decisions.group):
        held_out = np.zeros(len(decisions), np.bool_)
        held_out[test] = True
        yield held_out


def _thresholds(
    decisions: LabelledDecisions, scaled: FloatArray, fit: Mask, wish: Wish | None
) -> dict[int, float | None]:
    """Of each question with enough decisions, chosen on those of the mask `fit`."""
    if wish is None:
        return {}
    counts = np.bincount(decisions.question, minlength=len(decisions.questions))
    places = (int(place) for place in np.flatnonzero(counts >= LEAST))
    return {
        place: wish.threshold(*_takings(decisions, scaled, fit & (decisions.question == place))) for place in places
    }


def _takings(decisions: LabelledDecisions, scaled: FloatArray, mask: Mask) -> tuple[FloatArray, Mask]:
    return takings(decisions.only(mask), np.exp(scaled[mask]))
