"""Scaling: what a question's log-probabilities are divided by, and by whose word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ramet.decide.calibration import Calibration, ReadAs, Threshold, content_digest
from ramet.decide.settings import DecideSettings
from ramet.decision import ReachedThreshold, Scaled
from ramet.question import Noul, Question
from ramet.request import DecisionRequest, Method

LogProbabilities = npt.NDArray[np.float64]


def softmax(scores: LogProbabilities) -> LogProbabilities:
    """Probabilities along the last axis, which sum to 1 but for rounding in float64."""
    risen = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: LogProbabilities = risen / risen.sum(axis=-1, keepdims=True)
    return shares


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scores of each order, and of each draw of noise, are divided by `each` before they become probabilities. A
    calibration fitted on means over several of them divides the logarithms of the mean, by `mean`.

    `by` is None where no calibration is loaded: then an answer says nothing of all this. why: it does not count here.
    """

    each: float = 1.0
    mean: float = 1.0
    by: Literal["request", "question", "type", "model"] | None = None
    why: str | None = None
    threshold: Threshold | None = None

    def of_mean(self, probabilities: LogProbabilities) -> LogProbabilities:
        """Probabilities [..., options] again, of those that are means over orders, or of one order."""
        if self.mean == 1.0:
            return probabilities
        with np.errstate(divide="ignore"):  # of an option that is impossible
            return softmax(np.log(probabilities) / self.mean)

    def report(self, question: Question, probabilities: LogProbabilities) -> Scaled | None:
        """The answer's `x_scaled`, from the options' final probabilities; None where no calibration is loaded."""
        if self.by is None:
            return None
        p = float(probabilities[0] if isinstance(question, Noul) else probabilities.max())
        return Scaled(temperature=self.each * self.mean, by=self.by, why=self.why, threshold=self._reached(p))

    def _reached(self, p: float) -> ReachedThreshold | None:
        found = self.threshold
        if found is None:
            return None
        return ReachedThreshold(reached=p >= found.at, at=found.at, wanted=found.wanted, value=found.value)


def scalings(request: DecisionRequest, settings: DecideSettings, method: Method) -> Iterator[Scaling]:
    """Of each question of a request. The request's own temperature comes first, then the calibration's, for the
    question or else for its type, then the model's."""
    asked, calibration = request.x_temperature, settings.calibration
    temperatures, why = settings.temperature_of(method).but(asked), _why_not(calibration, request, method)
    for question in request.questions.values():
        temperature: float = getattr(temperatures, question.type)
        if calibration is None:
            yield Scaling(temperature)
        elif asked is not None and (not isinstance(asked, dict) or question.type in asked):
            yield Scaling(temperature, by="request")
        else:
            averages = calibration.reading.averages or settings.orders_of(method, question, request.x_debias) > 1
            found = None if why else _calibrated(calibration, question, averages=averages)
            yield found or Scaling(temperature, by="model", why=why or f"it has none for a {question.type}")


def _calibrated(calibration: Calibration, question: Question, *, averages: bool) -> Scaling | None:
    own = calibration.questions.get(content_digest(question)) if calibration.questions else None
    temperature, by = calibration.temperature(question, own)
    if temperature is None:
        return None
    threshold = own.threshold if own is not None else None
    if averages:
        return Scaling(mean=temperature, by=by, threshold=threshold)
    return Scaling(each=temperature, by=by, threshold=threshold)


def _why_not(calibration: Calibration | None, request: DecisionRequest, method: Method) -> str | None:
    """Why a calibration says nothing of a request's answers; None where it does."""
    if calibration is None:
        return None
    if method != calibration.model.method:
        return f'it was fitted with x_method "{calibration.model.method}"'
    fitted, read = calibration.reading.model_dump(), ReadAs.of(request).model_dump()
    odd = [
        f"the model's own {name}" if value is None else f"{name} {str(value).lower()}"
        for name, value in fitted.items()
        if value != read[name]
    ]
    return f"it was fitted with {', '.join(odd)}" if odd else None
