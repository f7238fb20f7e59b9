"""DecideSettings: the method, the priors and the temperatures of a model; chosen once at load, and frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ramet.decide.calibration import Calibration
from ramet.errors import InvalidRequest
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

    def __post_init__(self) -> None:
        for name in ("noul", "choice", "score"):
            value: float = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"prior.{name} is {value}; it must be from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideSettings:
    """`method`: "letters" lists the options under labels and reads the label; "options" scores each option's own text.
    `temperature` belongs to the method: where a request names another method, that runs at 1, unless the request sets a
    temperature too. `calibration`, of this model and method, comes before it.

    For "options" alone: `prior` (a noul whose outcomes are both described takes a choice's), and
    `scored`, which text of a choice's option is scored where it has a description. `cached_entries`
    bounds the questions kept ready for the next request that asks them, in array entries and
    characters (4 bytes each, about); `cached_bytes` the passages of states whose ids are kept, for states that grow.
    """

    method: Method = "letters"
    temperature: Temperatures = field(default_factory=Temperatures)
    prior: PriorWeights = field(default_factory=PriorWeights)
    scored: Scored = "description"
    cached_entries: int = 1 << 22
    cached_bytes: int = 64 << 20
    calibration: Calibration | None = None


def settings_for(template: str | None, *, method: Method | None = None, chat: bool = True) -> DecideSettings:
    """The settings of a model, by its chat template and by whether that frames a text. Names and paths do not count.

    Letters need a model that follows instructions. SmolLM2, whose template introduces it, picks the first letter
    whatever it reads, and a base model has learnt no such thing, so these score the options' own text. `method`
    overrides that choice. Raises InvalidRequest for one that there is not.
    """
    if method not in (None, *get_args(Method)):
        raise InvalidRequest(f"{method!r} is none of {', '.join(get_args(Method))}", field="method")
    settings = DecideSettings(method="letters" if chat else "options")
    if template is not None and _SMOLLM_SAYS in template:
        settings = DecideSettings(method="options", temperature=_SMOLLM)
    if method is None or method == settings.method:
        return settings
    return replace(settings, method=method, temperature=Temperatures())


_SMOLLM_SAYS = "named SmolLM"
_SMOLLM = Temperatures(choice=1.5, score=8.0)  # measured: at 1 it is far too sure of itself (docs/quality.md)
