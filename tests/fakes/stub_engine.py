"""StubEngine: an engine without a model, for tests of what stands around one.

Its answers depend on the state, the instructions and the options' texts alone, never on a question's
name, its place or its neighbours, and are the same on every run. It can be told to be slow, full,
broken, or to fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.stub_writer import StubWriter

from ramet.decide.calibration import Calibration
from ramet.decision import Answer, ChoiceAnswer, Decision, NoulAnswer, ScoreAnswer, Timing, Usage
from ramet.errors import EngineFault, NotSupported, Overloaded, RequestTooLong
from ramet.question import Choice, Noul, Outcomes, Question
from ramet.request import DecisionRequest
from ramet.values import as_json

LABEL_MASS = 0.75


@dataclass
class StubEngine:
    """Set the fields at any time. `received`, `n_running` and `n_cancelled` tell what happened."""

    name: str = "stub"
    fault: EngineFault | None = None
    failure: Exception | None = None  # raised by every decision
    delay_s: float = 0.0
    max_running: int = 1000  # beyond it Overloaded
    retry_after_s: float = 1.5
    max_request_tokens: int = 100_000
    calibration: Calibration | None = None
    text: StubWriter | None = None  # what writes text; None: decisions alone
    received: list[DecisionRequest] = field(default_factory=list)
    n_running: int = 0
    n_cancelled: int = 0

    async def decide_async(self, request: DecisionRequest) -> Decision:
        self._admit(request)
        self.n_running += 1
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        finally:
            self.n_running -= 1
        return self._decision(request)

    @property
    def writer(self) -> StubWriter:
        if self.text is None:
            raise NotSupported(f"{self.name} writes no text")
        return self.text

    def stats(self) -> Mapping[str, float]:
        return {"open_requests": float(self.n_running), "requests_total": float(len(self.received))}

    def histograms(self) -> Mapping[str, Mapping[int, int]]:
        return {"round_requests": {1: 2, 3: 1, 5000: 1}}

    def describe(self) -> Mapping[str, str]:
        return {"fingerprint": "0" * 32, "device": "none", "dtype": "hash"}

    def close(self) -> None:
        """Nothing is held."""

    def _admit(self, request: DecisionRequest) -> None:
        self.received.append(request)
        if self.fault is not None:
            raise self.fault
        if self.failure is not None:
            raise self.failure
        if self.n_running >= self.max_running:
            raise Overloaded("the queue is full", retry_after_s=self.retry_after_s)
        n_tokens = _n_tokens(request)
        if n_tokens > self.max_request_tokens:
            message = f"the request has {n_tokens} tokens; at most {self.max_request_tokens} fit"
            raise RequestTooLong(message, field="state")

    def _decision(self, request: DecisionRequest) -> Decision:
        return Decision(
            model=self.name,
            answers={name: _answer(request, question) for name, question in request.questions.items()},
            usage=Usage(input_tokens=_n_tokens(request), output_tokens=len(request.questions), x_cached_tokens=1),
            x_timing=Timing(plan_ms=0.0, queue_ms=0.0, pass_ms=0.0, total_ms=0.0),
        )


def _answer(request: DecisionRequest, question: Question) -> Answer:
    if isinstance(question, Noul):
        outcomes = question.criteria or Outcomes()
        yes, _ = _distribution(request, question, {"yes": outcomes.true, "no": outcomes.false})
        return NoulAnswer(noul=yes, x_label_mass=LABEL_MASS)
    if isinstance(question, Choice):
        probabilities = dict(zip(question.criteria, _distribution(request, question, question.criteria), strict=True))
        choice = max(probabilities, key=lambda name: probabilities[name])
        confidence = _choice_confidence(list(probabilities.values()))
        return ChoiceAnswer(choice=choice, confidence=confidence, probabilities=probabilities, x_label_mass=LABEL_MASS)
    levels = dict(zip(map(str, range(len(question.criteria))), question.criteria, strict=True))
    numbers = _distribution(request, question, levels)
    return ScoreAnswer(
        score=sum(i * p for i, p in enumerate(numbers)),
        confidence=_score_confidence(numbers),
        legend=levels,
        probabilities=dict(zip(levels, numbers, strict=True)),
        x_label_mass=LABEL_MASS,
    )


def _distribution(request: DecisionRequest, question: Question, options: Mapping[str, Any]) -> list[float]:
    """Probabilities of the options; those of the same texts are the same wherever they stand."""
    temperature = request.x_temperature if isinstance(request.x_temperature, float) else 1.0
    logits = [
        _hashed(request.state, question.instructions, name, description) / temperature
        for name, description in options.items()
    ]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def _hashed(*parts: Any) -> float:
    """A number from -3 to 3 that the parts decide."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64 * 6 - 3


def _choice_confidence(probabilities: Sequence[float]) -> float:
    n = len(probabilities)
    return 1.0 if n == 1 else (max(probabilities) - 1 / n) / (1 - 1 / n)


def _score_confidence(probabilities: Sequence[float]) -> float:
    n = len(probabilities)
    if n == 1:
        return 1.0
    mode = max(range(n), key=lambda i: probabilities[i])
    spread = sum(p * abs(i - mode) for i, p in enumerate(probabilities))
    return max(0.0, 1 - spread / (sum(abs(i - (n - 1) / 2) for i in range(n)) / n))


def _n_tokens(request: DecisionRequest) -> int:
    questions = [question.model_dump_json() for question in request.questions.values()]
    return sum(len(text) // 4 + 1 for text in [as_json(request.state), *questions])
