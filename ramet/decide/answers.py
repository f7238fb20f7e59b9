"""Log-probabilities of options -> answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.decide import confidence
from ramet.request import Answer, Choice, ChoiceAnswer, Confidence, Noul, NoulAnswer, Question, ScoreAnswer
from ramet.tree import BoolArray

LogProbabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One question of a plan, and where its numbers are.

    Its cells are n_orders * n_options from `first` on, and those of its prior, of which `weight` times
    is taken off, from `prior` on (nowhere where the weight is 0). `distinct` [n_cells] marks the cells
    that add up to the mass.
    """

    name: str
    question: Question
    n_orders: int
    n_options: int
    first: int
    prior: int
    weight: float
    distinct: BoolArray
    temperature: float

    def answer(self, cells: LogProbabilities, formula: Confidence) -> Answer:
        """The answer, from the log-probabilities [n] of all cells of the plan."""
        scores = own = self._block(cells, self.first)
        if self.weight:
            scores = own - self.weight * self._block(cells, self.prior)
        probabilities = softmax(scores / self.temperature).mean(axis=0)
        counted = np.where(self.distinct.reshape(own.shape), np.exp(own), 0.0)
        mass = min(1.0, float(counted.sum(axis=1).mean()))
        return self._worded(probabilities, mass, formula)

    def _block(self, cells: LogProbabilities, begin: int) -> LogProbabilities:
        return cells[begin : begin + self.n_orders * self.n_options].reshape(self.n_orders, self.n_options)

    def _worded(self, p: LogProbabilities, mass: float, formula: Confidence) -> Answer:
        question = self.question
        if isinstance(question, Noul):
            return NoulAnswer(noul=float(p[0]), x_label_mass=mass)
        if isinstance(question, Choice):
            names = list(question.criteria)
            return ChoiceAnswer(
                choice=names[int(p.argmax())],
                confidence=confidence.of_choice(p, mass, formula),
                probabilities=dict(zip(names, p.tolist(), strict=True)),
                x_label_mass=mass,
            )
        return ScoreAnswer(
            score=confidence.expectation(p),
            confidence=confidence.of_score(p, mass, formula),
            legend={str(i): level for i, level in enumerate(question.criteria)},
            probabilities={str(i): value for i, value in enumerate(p.tolist())},
            x_label_mass=mass,
        )


def softmax(scores: LogProbabilities) -> LogProbabilities:
    """Probabilities along the last axis, which sum to 1 but for rounding in float64."""
    risen = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: LogProbabilities = risen / risen.sum(axis=-1, keepdims=True)
    return shares
