"""PlannedQuestion: makes an answer of the log-probabilities of its options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ramet.decide import confidence
from ramet.decide.branch import CellGrid, QuestionBranch
from ramet.decide.scaling import LogProbabilities, Scaling, softmax
from ramet.decision import Answer, ChoiceAnswer, Debiased, NoulAnswer, ScoreAnswer
from ramet.question import Choice, Noul, Question
from ramet.request import Confidence, DecisionRequest


@dataclass(frozen=True, slots=True, eq=False)
class PlannedQuestion:
    """One question of a plan, and where its numbers are. `n_samples` of its orders in a row differ by their noise
    alone.

    Its cells are those of `grid` from `first` on. Those of its prior begin at `prior`; the answer subtracts `weight`
    times their values (a weight of 0 has no prior).
    """

    name: str
    question: Question
    grid: CellGrid
    n_samples: int
    first: int
    prior: int
    weight: float
    scaling: Scaling

    def answer(self, cells: LogProbabilities, formula: Confidence) -> Answer:
        """The answer, from the log-probabilities [n] of all cells of the plan."""
        scores = own = self._block(cells, self.first)
        if self.weight:
            scores = own - self.weight * self._block(cells, self.prior)
        each = softmax(scores / self.scaling.each)
        probabilities = self.scaling.of_mean(each.mean(axis=0))
        counted = np.where(self.grid.distinct.reshape(own.shape), np.exp(own), 0.0)
        mass = min(1.0, float(counted.sum(axis=1).mean()))
        return self._worded(probabilities, mass, formula, self._error(each))

    def _error(self, each: LogProbabilities) -> list[float] | None:
        """The standard error of each option's probability over the samples, from those [orders, options] of all orders;
        None for one sample."""
        if self.n_samples == 1:
            return None
        samples = self.scaling.of_mean(each.reshape(-1, self.n_samples, self.grid.n_options).mean(axis=0))
        error: list[float] = (samples.std(axis=0, ddof=1) / self.n_samples**0.5).tolist()
        return error

    def _block(self, cells: LogProbabilities, begin: int) -> LogProbabilities:
        return cells[begin : begin + self.grid.n_cells].reshape(self.grid.n_orders, self.grid.n_options)

    def _worded(self, p: LogProbabilities, mass: float, formula: Confidence, error: list[float] | None) -> Answer:
        question, scaled, debiased = self.question, self.scaling.report(self.question, p), self._debiased()
        if isinstance(question, Noul):
            return NoulAnswer(
                noul=float(p[0]),
                x_label_mass=mass,
                x_standard_error=error[0] if error else None,
                x_scaled=scaled,
                x_debiased=debiased,
            )
        if isinstance(question, Choice):
            names = list(question.criteria)
            return ChoiceAnswer(
                choice=names[int(p.argmax())],
                confidence=confidence.of_choice(p, mass, formula),
                probabilities=dict(zip(names, p.tolist(), strict=True)),
                x_label_mass=mass,
                x_standard_error=dict(zip(names, error, strict=True)) if error else None,
                x_scaled=scaled,
                x_debiased=debiased,
            )
        return ScoreAnswer(
            score=confidence.expectation(p),
            confidence=confidence.of_score(p, mass, formula),
            legend={str(i): level for i, level in enumerate(question.criteria)},
            probabilities={str(i): value for i, value in enumerate(p.tolist())},
            x_label_mass=mass,
            x_standard_error={str(i): value for i, value in enumerate(error)} if error else None,
            x_scaled=scaled,
            x_debiased=debiased,
        )

    def _debiased(self) -> Debiased | None:
        """What took a liking of the model's off the answer; None where nothing did."""
        n_orders = self.grid.n_orders // self.n_samples
        return Debiased(orders=n_orders, prior=self.weight) if n_orders > 1 or self.weight else None


def planned(
    request: DecisionRequest,
    weights: Sequence[float],
    priors: Sequence[int],
    branches: Sequence[QuestionBranch],
    scalings: Iterable[Scaling],
) -> tuple[PlannedQuestion, ...]:
    """The questions with their cells: those under the state are in the request's order. priors: where those of the
    questions that have a weight begin."""
    found, first, places = [], 0, iter(priors)
    grids = [grid for branch in branches for grid in branch.grids]
    for (name, question), weight, grid, scaling in zip(
        request.questions.items(), weights, grids, scalings, strict=True
    ):
        prior = next(places) if weight else 0
        found.append(PlannedQuestion(name, question, grid, request.x_samples, first, prior, weight, scaling))
        first += grid.n_cells
    return tuple(found)
