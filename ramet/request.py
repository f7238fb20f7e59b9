"""DecisionRequest: a state and its questions, in one definition for Python, the server and the command line.

The field names are those of the System One wire format. What Ramet adds begins with ``x_``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from ramet import media
from ramet.names import ELSEWHERE, is_media, nearest, plain
from ramet.problems import FewFields, all_located, check_count, invalid, located
from ramet.question import Questions
from ramet.values import WHOLE_NUMBER, Name, Seed, Temperature, Text

Method = Literal["letters", "options"]
Confidence = Literal["typesafe", "vllm", "top"]

MAX_SAMPLES = 32
MAX_STEPS = 8


class DecisionRequest(FewFields):
    """One state and its questions. Unknown top-level fields are ignored, as the wire format asks, but for those that
    would change an answer: media, misspelt fields of ours, and what other servers have on this route (see `names`)."""

    model: Name = Field(default="jev-latest", description="A model's name or alias, as GET /v1/models lists them.")
    state: Text = Field(description="What the questions are about. May be empty: then the questions stand alone.")
    questions: Questions = Field(
        description="Question name to question. The names are the caller's and never shown to the model."
    )
    cache_salt: str = Field(
        default="",
        description="Kept states are shared only among requests with the same salt: give each tenant a secret one.",
    )
    seed: Seed | None = Field(
        default=None,
        description="As x_seed where noise is drawn. A model without canvases draws none, and no answer depends on it.",
    )
    joint: bool = Field(
        default=False,
        strict=True,
        description="Of a diffusion model: answer the questions on one canvas, or on few, a line each. One question is "
        "read as ever.",
    )
    x_method: Method | None = Field(
        default=None,
        description="How options are read: `letters` by labels listed in the prompt, `options` by the log-probability "
        "of each option's own text. The model's own method when absent.",
    )
    x_debias: Annotated[int, Field(ge=1, le=16, strict=True), WHOLE_NUMBER] | None = Field(
        default=None,
        description="Average over so many cyclic orders of the options, in the same pass. The model's own number, for "
        "choices alone, when absent.",
    )
    x_prior: Annotated[float, Field(ge=0, le=1, strict=True)] | None = Field(
        default=None,
        description="How much of each option's prior, its log-probability after the same question with an empty "
        "state, is taken off: 0 none, 1 all. The model's own weights when absent.",
    )
    x_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES, strict=True), WHOLE_NUMBER] = Field(
        default=1,
        description="Of a diffusion model: average over so many draws of noise, in the same pass; answers then have "
        "their standard error.",
    )
    x_steps: Annotated[int, Field(ge=1, le=MAX_STEPS, strict=True), WHOLE_NUMBER] = Field(
        default=1,
        description="Of a diffusion model: denoise what is read in so many steps at most, a pass each.",
    )
    x_seed: Seed | None = Field(
        default=None,
        description="Of a diffusion model: draws the noise of canvases anew, by this number and the prompt; by the "
        "prompt alone when absent.",
    )
    x_temperature: Temperature | None = Field(
        default=None, description="Divides the logits: one number, or one a question type. The model's own when absent."
    )
    x_confidence: Confidence = Field(
        default="typesafe",
        description="Formula of `confidence`: TypeSafe's, vLLM's, or the top probability.",
    )

    @classmethod
    def parse(cls, data: Any) -> DecisionRequest:
        """Check `data` (JSON values, or our own question objects). Raises InvalidRequest that lists every problem."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise invalid(error) from error

    @classmethod
    def ignored(cls, names: Iterable[str]) -> list[str]:
        """Those of the names of top-level fields that the server ignores."""
        return [name for name in names if name not in cls.model_fields]

    @classmethod
    def refused(cls, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Those of the names of top-level fields that the server refuses, each with the reason."""
        for name in cls.ignored(names):
            if is_media(name):
                yield name, f"holds media: {media.WHY}; leave it away, or say in the state what there is to know"
            elif (known := _ELSEWHERE.get(plain(name))) is not None:
                yield name, ELSEWHERE[known].why
            elif (near := nearest(name, cls.model_fields)) is not None:
                yield name, f"unknown field; did you mean {near}?"

    @property
    def noise_seed(self) -> int | None:
        """The seed of the noise; None: the prompt alone draws it."""
        return self.seed if self.x_seed is None else self.x_seed

    @model_validator(mode="before")
    @classmethod
    def _no_field_misses_its_aim(cls, data: Any) -> Any:
        """Refuse fields that would be ignored although the caller relies on them."""
        if isinstance(check_count(data), dict):
            asking = (name for name, value in data.items() if isinstance(name, str) and not _asks_nothing(name, value))
            problems = [((name,), "unknown_field", why) for name, why in cls.refused(asking)]
            if problems:
                raise all_located(problems)
        return data

    @model_validator(mode="after")
    def _one_seed(self) -> Self:
        if None not in (self.seed, self.x_seed) and self.seed != self.x_seed:
            raise located(("seed",), "seed", "says what x_seed says: give one of them")
        return self


_ELSEWHERE = {plain(name): name for name in ELSEWHERE}


def _asks_nothing(name: str, value: Any) -> bool:
    if is_media(name):
        return media.is_empty(value)
    known = _ELSEWHERE.get(plain(name))
    return value is None or (known is not None and ELSEWHERE[known].allows(value))


def extent(request: DecisionRequest, enough: int) -> int:
    """About how many characters a request has, or `enough` if it has more: counting stops there."""
    found, within = 0, list[Any]([request.state, *request.questions.values()])
    while within and found < enough:
        value = within.pop()
        if isinstance(value, str):
            found += len(value)
        elif isinstance(value, (dict, list)):
            found += _ENTRY * len(value)
            if found < enough:
                within += [*value, *value.values()] if isinstance(value, dict) else value
        elif isinstance(value, BaseModel):
            found += _ENTRY
            within += [inner for _, inner in value]
    return min(found, enough)


_ENTRY = 16  # characters that an entry stands for, besides its texts
