"""FittedTemperatures: log T = a + b ln n for each type, and a temperature for each question that has enough rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from ramet.agree.answer import KINDS
from ramet.calibrate.decisions import LEAST, FloatArray, LabelledDecisions
from ramet.decide.calibration import Kind, TypeTemperature, bounded

# Normal priors of a, b and of how far a question is from its type: weak ones, worth a row or less, so that T stays
# finite where all answers are right. A question's is tighter: few rows leave it near its type.
DEVIATIONS = np.array([2.0, 1.0])
OF_QUESTION = 0.5


@dataclass(frozen=True, slots=True)
class FittedTemperatures:
    """`of_types` by type; `of_questions` by the question's place among the decisions' questions."""

    of_types: Mapping[Kind, TypeTemperature]
    of_questions: Mapping[int, float]

    @classmethod
    def of(cls, decisions: LabelledDecisions, *, per_question: bool) -> FittedTemperatures:
        """The temperatures with the greatest likelihood, under the priors above. A question whose labels are all the
        same has none of its own."""
        of_types = dict[Kind, TypeTemperature]()
        for place, kind in enumerate(KINDS):
            own = decisions.only(decisions.kind == place)
            if len(own):
                of_types[kind] = _of_type(own)
        fitted = cls(of_types, {})
        if not per_question:
            return fitted
        by_question = ((place, decisions.only(decisions.question == place)) for place in np.unique(decisions.question))
        many = {int(place): some for place, some in by_question if len(some) >= LEAST and np.ptp(some.right)}
        return cls(of_types, {place: _of_question(some, fitted) for place, some in many.items()})

    def each(self, decisions: LabelledDecisions) -> FloatArray:
        """The temperature [D] of each decision, as an engine would choose it."""
        kinds = [KINDS[int(kind)] for kind in decisions.kind]
        found = [
            self.of_questions.get(int(question)) or self.of_types[kind].of(int(n))
            for kind, question, n in zip(kinds, decisions.question, decisions.n, strict=True)
        ]
        return np.array(found, np.float64)


def _of_type(decisions: LabelledDecisions) -> TypeTemperature:
    """Fitted around the mean of ln n, so that a and b depend on each other little. With one number of options b is 0:
    there is nothing to tell it by."""
    sizes = np.log(decisions.n)
    middle = float(sizes.mean())
    features = np.stack([np.ones(len(sizes)), sizes - middle], axis=1)
    if np.ptp(decisions.n) == 0:
        features, (alpha,) = features[:, :1], _fitted(decisions, features[:, :1], DEVIATIONS[:1])
        slope = 0.0
    else:
        alpha, slope = _fitted(decisions, features, DEVIATIONS)
    return TypeTemperature(
        a=float(alpha - slope * middle),
        b=float(slope),
        least=int(decisions.n.min()),
        most=int(decisions.n.max()),
        rows=len(decisions),
    )


def _of_question(decisions: LabelledDecisions, fitted: FittedTemperatures) -> float:
    of_type = fitted.each(decisions)
    (shift,) = _fitted(decisions, np.ones((len(decisions), 1)), np.array([OF_QUESTION]), np.log(of_type))
    return bounded(math.exp(math.log(of_type[0]) + shift))


def _fitted(
    decisions: LabelledDecisions, features: FloatArray, deviations: FloatArray, base: FloatArray | float = 0.0
) -> FloatArray:
    """The coefficients [K] of log T = base + features [D, K] times them."""
    rows = np.arange(len(decisions))

    def loss(coefficients: FloatArray) -> tuple[float, FloatArray]:
        scaled = decisions.scaled(np.exp(base + features @ coefficients))
        p, powers = np.exp(scaled), decisions.log_p / np.exp(base + features @ coefficients)[:, None]
        slopes = powers[rows, decisions.right] - (p * powers).sum(axis=1)  # of each loss, by log T
        pull = coefficients / deviations**2
        value = -scaled[rows, decisions.right].sum() + 0.5 * float(coefficients @ pull)
        return float(value), features.T @ slopes + pull

    found = minimize(loss, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B", bounds=[(-5, 5)] * len(deviations))
    solution: FloatArray = found.x
    return solution
