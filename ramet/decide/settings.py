"""DecideSettings: the method, the priors and the temperatures of a model; chosen once at load, and frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ramet.decide.calibration import Calibration
from ramet.errors import InvalidRequest
from ramet.question import Choice, Question
from ramet.request import Method
from ramet.values import Temperature

Scored = Literal["name", "description", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperatures:
    """What the log-probabilities of a question's options are divided by before they are made to sum to 1."""

    noul: float = 1.0
    choice: float = 1.0
    score: float = 1.0

    def __post_init__(self) -> None:
        for name in ("noul", "choice", "score"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"temperature.{name} is {value}; it must be a finite number above 0")

    def but(self, requested: Temperature | None) -> Temperatures:
        """These temperatures, with those of a request in their place: one for all types, or some by type."""
        if requested is None:
            return self
        if isinstance(requested, dict):
            return replace(self, **requested)
        return Temperatures(noul=requested, choice=requested, score=requested)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorWeights:
    """How much of an option's no-context prior is taken off its log-probability, from 0 (none) to 1 (all of it)."""

    noul: float = 0.0
    choice: float = 0.9
    score: float = 0.9

    def of(self, kind: Literal["noul", "choice", "score"]) -> float:
        """Of a type of question."""
        weight: float = getattr(self, kind)
        return weight

    def __post_init__(self) -> None:
        for name in ("noul", "choice", "score"):
            value: float = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"prior.{name} is {value}; it must be from 0 to 1")


# What is usual for a method, where nothing was measured for the model.
PRIORS: dict[Method, PriorWeights] = {
    "letters": PriorWeights(noul=0.0, choice=0.0, score=0.0),
    "options": PriorWeights(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideSettings:
    """`method`: "letters" lists the options under labels and reads the label; "options" scores each option's own text.
    `temperature` and `prior` (None: the method's usual weights) belong to the method: where a request names another
    method, that runs at 1 and with its usual weights, unless the request says otherwise. So does `n_orders`, over which
    the answers to choices are averaged. `calibration`, of this model and method, comes before the temperature. `lead`
    stands before a state that is not empty.

    For "options" alone: `scored`, which text of a choice's option is scored where it has a description; and a noul
    whose outcomes are both described takes a choice's prior. `cached_entries`
    bounds the questions kept ready for the next request that asks them, in array entries and
    characters (4 bytes each, about); `cached_bytes` the passages of states whose ids are kept, for states that grow.
    """

    method: Method = "letters"
    temperature: Temperatures = field(default_factory=Temperatures)
    prior: PriorWeights | None = None
    n_orders: int = 1
    lead: str = ""
    scored: Scored = "description"
    cached_entries: int = 1 << 22
    cached_bytes: int = 64 << 20
    calibration: Calibration | None = None

    def temperature_of(self, method: Method) -> Temperatures:
        """The temperatures of a method, which may be another than the model's own."""
        return self.temperature if method == self.method else Temperatures()

    def orders_of(self, method: Method, question: Question, requested: int | None) -> int:
        """Over how many orders of its options a question is averaged, at most."""
        if requested is not None:
            return requested
        return self.n_orders if method == self.method and isinstance(question, Choice) else 1

    def prior_of(self, method: Method) -> PriorWeights:
        """The weights of priors of a method, which may be another than the model's own."""
        return PRIORS[method] if self.prior is None or method != self.method else self.prior


def settings_for(
    template: str | None, *, width: int, method: Method | None = None, chat: bool = True
) -> DecideSettings:
    """The settings of a model, by its chat template, by whether that frames a text, and by the width of its layers.
    Names and paths do not count.

    Letters need a model that follows instructions. SmolLM2, whose template introduces it, picks the first letter
    whatever it reads, and a base model has learnt no such thing, so these score the options' own text. `method`
    overrides that choice. Raises InvalidRequest for one that there is not.
    """
    if method not in (None, *get_args(Method)):
        raise InvalidRequest(f"{method!r} is none of {', '.join(get_args(Method))}", field="method")
    settings = DecideSettings(method="letters" if chat else "options")
    if template is not None:
        found = (each.settings for each in _MEASURED if each.said in template and width <= each.max_width)
        settings = next(found, settings)
    if method is None or method == settings.method:
        return settings
    return replace(settings, method=method, temperature=Temperatures(), prior=None, n_orders=1)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The settings of models whose template says so, as far as they are no wider. docs/quality.md has the figures."""

    said: str
    max_width: int
    settings: DecideSettings


_QWEN = "You are Qwen, created by Alibaba Cloud"  # follows a text better that is called one
_MEASURED = (
    # At a temperature of 1 it is far too sure of itself.
    _Measured("named SmolLM", 576, DecideSettings(method="options", temperature=Temperatures(choice=1.5, score=8.0))),
    # The small one picks the first letters, whatever it reads.
    _Measured(_QWEN, 896, DecideSettings(method="options", lead="Text: ")),
    # The larger one likes some letters, and yes, better than others.
    _Measured(
        _QWEN,
        1536,
        DecideSettings(
            method="letters", lead="Text: ", n_orders=4, prior=PriorWeights(noul=0.5, choice=1.0, score=0.0)
        ),
    ),
)
