"""What is asked of a decision and what comes back: questions, answers, usage.

The field names are those of the System One wire format, so that one definition serves the Python
interface, the server and the command line. What Ramet adds is prefixed ``x_``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ramet import media
from ramet.names import ELSEWHERE, is_media, nearest, plain
from ramet.problems import QUESTION_TYPES, FewFields, Loc, all_located, check_count, entry_by_entry, invalid, located

Method = Literal["letters", "options"]
Confidence = Literal["typesafe", "vllm", "top"]

MAX_NAME = 1024  # characters
MAX_QUESTIONS = 1 << 16
MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_SAMPLES = 32
MAX_STEPS = 8
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 63) - 1
MAX_NESTING = 100  # of objects and arrays where text is allowed
TEMPERATURES = (0.01, 100.0)


def _is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_SURROGATE = ("string_unicode", "should be Unicode text: it has an unpaired surrogate")


def _value_fault(value: Any, depth: int) -> tuple[Loc, tuple[str, str]] | None:
    """Where and why a JSON value cannot be shown to a model; None if it can."""
    if isinstance(value, str):
        return _string_fault(value)
    if isinstance(value, float):
        return None if math.isfinite(value) else ((), ("finite_number", "should be a finite number"))
    if value is None or isinstance(value, (bool, int)):
        return None
    if not isinstance(value, (dict, list)):
        return (), ("json_type", f"should be a JSON value, not {type(value).__name__}")
    if depth == MAX_NESTING:
        return (), ("nesting", f"should be nested at most {MAX_NESTING} deep")
    if not value:
        return None
    if isinstance(value, dict) and (why := media.part_fault(value)) is not None:
        return (), ("media", why)
    return _container_fault(value, depth)


def _string_fault(text: str) -> tuple[Loc, tuple[str, str]] | None:
    if not _is_unicode(text):
        return (), _SURROGATE
    why = media.text_fault(text)
    return None if why is None else ((), ("media", why))


def _container_fault(value: dict[Any, Any] | list[Any], depth: int) -> tuple[Loc, tuple[str, str]] | None:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(key, str):
            return (), ("json_key", f"keys should be text, not {type(key).__name__}")
        if isinstance(key, str) and not _is_unicode(key):
            return (key,), _SURROGATE
        found = _value_fault(inner, depth + 1)
        if found is not None:
            return (key, *found[0]), found[1]
    return None


def check_value(value: Any) -> None:
    """Raise, in a validator, for a JSON value that cannot be shown to a model, naming the place in it."""
    fault = _value_fault(value, 0)
    if fault is not None:
        raise located(fault[0], *fault[1])


def _check_text(value: Any) -> Any:
    if not isinstance(value, (str, dict, list)):
        found = "null" if value is None else type(value).__name__
        raise located((), "text_type", f"should be text, an object or an array, not {found}")
    check_value(value)
    return value


def whole(value: Any) -> Any:
    """JSON has one kind of number: 2.0 is 2, as some clients write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_name(name: str) -> str:
    if not name:
        raise PydanticCustomError("name_empty", "a name should not be empty")
    if len(name) > MAX_NAME:
        raise located((), "name_too_long", f"a name should have at most {MAX_NAME} characters, not {len(name)}")
    if not _is_unicode(name):
        raise PydanticCustomError(*_SURROGATE)
    return name


def _check_temperature(value: Any) -> Any:
    numbers = value if isinstance(value, dict) else {"noul": value}
    low, high = TEMPERATURES
    if not set(numbers) <= set(QUESTION_TYPES) or not all(
        isinstance(n, (int, float)) and not isinstance(n, bool) and low <= n <= high for n in numbers.values()
    ):
        expected = f"from {low:g} to {high:g}, or an object of such numbers with keys among noul, choice, score"
        raise PydanticCustomError("temperature", "should be a number {expected}", {"expected": expected})
    return {key: float(n) for key, n in value.items()} if isinstance(value, dict) else float(value)


def _few(most: int, what: str) -> BeforeValidator:
    return BeforeValidator(partial(check_count, most=most, what=what))


WHOLE = BeforeValidator(whole)
Text = Annotated[  # objects and arrays are allowed wherever text is
    str | dict[str, JsonValue] | list[JsonValue],
    PlainValidator(_check_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {}}]}),
]
Seed = Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED, strict=True), WHOLE]
Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_NAME}),
]
_NUMBER = {"type": "number", "minimum": TEMPERATURES[0], "maximum": TEMPERATURES[1]}
Temperature = Annotated[
    dict[Literal["noul", "choice", "score"], float] | float,
    PlainValidator(_check_temperature),
    WithJsonSchema(
        {
            "anyOf": [
                _NUMBER,
                {
                    "type": "object",
                    "properties": dict.fromkeys(QUESTION_TYPES, _NUMBER),
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def is_blank(text: Text | None) -> bool:
    """True when there is nothing to read: None, only white space, an empty object or array."""
    return not (text.strip() if isinstance(text, str) else text)


class Outcomes(FewFields):
    """Descriptions of a noul's two outcomes; either may be missing."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    true: Text | None = None
    false: Text | None = None


def _typed(schema: dict[str, Any]) -> None:
    """On the wire a question's type is needed, which Python's classes say by themselves."""
    schema["required"] = ["type", *schema.get("required", ())]


_SOMETHING = {
    "anyOf": [
        {"type": "string", "pattern": r"\S"},
        {"type": "object", "minProperties": 1},
        {"type": "array", "minItems": 1},
    ]
}


def _asking(schema: dict[str, Any]) -> None:
    """What `Noul` checks by itself."""
    _typed(schema)
    outcomes = [{"required": [name], "properties": {name: _SOMETHING}} for name in ("true", "false")]
    described = {"type": "object", "anyOf": outcomes}
    ways = (("instructions", _SOMETHING), ("criteria", described))
    schema["anyOf"] = [{"required": [name], "properties": {name: how}} for name, how in ways]


class Noul(FewFields):
    """Is it true? Answered with the probability that it is. Needs instructions or a described outcome."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_asking)

    type: Literal["noul"] = "noul"
    instructions: Text | None = None
    criteria: Outcomes | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Noul:
        outcomes = self.criteria or Outcomes()
        if is_blank(self.instructions) and is_blank(outcomes.true) and is_blank(outcomes.false):
            raise PydanticCustomError("noul_empty", "a noul needs instructions or the description of an outcome")
        return self


Options = Annotated[dict[Name, Text | None], Field(min_length=1, max_length=MAX_OPTIONS), _few(MAX_OPTIONS, "options")]


class Choice(FewFields):
    """Which one? `criteria` maps each option's name to its description, or to None."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_typed)

    type: Literal["choice"] = "choice"
    instructions: Text | None = None
    criteria: Options


class Score(FewFields):
    """How much? `criteria` lists the levels' descriptions, lowest first."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_typed)

    type: Literal["score"] = "score"
    instructions: Text | None = None
    criteria: list[Text] = Field(min_length=1, max_length=MAX_LEVELS)


Question = Annotated[Noul | Choice | Score, Field(discriminator="type")]
Questions = Annotated[
    dict[Name, Question],
    Field(min_length=1, max_length=MAX_QUESTIONS),
    WrapValidator(entry_by_entry),
    _few(MAX_QUESTIONS, "questions"),
]


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
    x_debias: Annotated[int, Field(ge=1, le=16, strict=True), WHOLE] = Field(
        default=1,
        description="Average over so many cyclic orders of the options, in the same pass.",
    )
    x_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES, strict=True), WHOLE] = Field(
        default=1,
        description="Of a diffusion model: average over so many draws of noise, in the same pass; answers then have "
        "their standard error.",
    )
    x_steps: Annotated[int, Field(ge=1, le=MAX_STEPS, strict=True), WHOLE] = Field(
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
        """Of the names of top-level fields, those that mean nothing here."""
        return [name for name in names if name not in cls.model_fields]

    @classmethod
    def refused(cls, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Of the names of top-level fields that ask for something, those that are neither ours nor ignored; and why."""
        for name in cls.ignored(names):
            if is_media(name):
                yield name, f"holds media: {media.WHY}; leave it away, or say in the state what there is to know"
            elif (known := _ELSEWHERE.get(plain(name))) is not None:
                yield name, ELSEWHERE[known].why
            elif (near := nearest(name, cls.model_fields)) is not None:
                yield name, f"unknown field; did you mean {near}?"

    @property
    def noise_seed(self) -> int | None:
        """By what noise is drawn anew; None: by the prompt alone."""
        return self.seed if self.x_seed is None else self.x_seed

    @model_validator(mode="before")
    @classmethod
    def _no_field_misses_its_aim(cls, data: Any) -> Any:
        """Refuse what would be ignored although the caller counts on it."""
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


_WHERE_CANVASES: Any = Field(default=None, exclude_if=lambda value: value is None)
_WHERE_SAMPLED: Any = Field(default=None, exclude_if=lambda value: value is None)


class NoulAnswer(BaseModel):
    """To a noul."""

    model_config = ConfigDict(allow_inf_nan=False)

    type: Literal["noul"] = "noul"
    noul: float  # probability of true
    x_label_mass: float  # probability that the model gives to the labels together, before they are made to sum to 1
    x_standard_error: float | None = _WHERE_SAMPLED  # of noul, over the samples


class ChoiceAnswer(BaseModel):
    """To a choice."""

    model_config = ConfigDict(allow_inf_nan=False)

    type: Literal["choice"] = "choice"
    choice: str  # the likeliest option's name
    confidence: float  # from 0 to 1, by the formula that `x_confidence` names
    probabilities: dict[str, float]  # of the options, by name; they sum to 1
    x_label_mass: float  # as a noul's
    x_standard_error: dict[str, float] | None = _WHERE_SAMPLED  # of the probabilities


class ScoreAnswer(BaseModel):
    """To a score."""

    model_config = ConfigDict(allow_inf_nan=False)

    type: Literal["score"] = "score"
    score: float  # expectation of the level
    confidence: float  # from 0 to 1, by the formula that `x_confidence` names
    legend: dict[str, Text]  # the levels' descriptions, by number as text
    probabilities: dict[str, float]  # of the levels, by number as text; they sum to 1
    x_label_mass: float  # as a noul's
    x_standard_error: dict[str, float] | None = _WHERE_SAMPLED  # of the probabilities


Answer = Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]


class JointCanvas(BaseModel):
    """A canvas that answers several questions: their names, its rows, and the row from which each is read."""

    questions: list[str]
    width: int  # in tokens
    slots: list[int]  # rows of the canvas, counted from 0


class Joint(BaseModel):
    """How the questions of a joint read were put on canvases; each is drawn anew for each sample and order."""

    canvases: list[JointCanvas]


class Usage(BaseModel):
    """Tokens of a decision."""

    input_tokens: int  # each token of the tree once
    output_tokens: int  # one a question
    x_cached_tokens: int = 0  # of the input tokens, those that were not computed again
    x_engine_steps: int | None = _WHERE_CANVASES  # rounds that computed a part of it
    x_fell_back: bool | None = _WHERE_CANVASES  # a canvas had no room in the round that ended its prompt


class Timing(BaseModel):
    """What a decision took, in milliseconds."""

    plan_ms: float  # making the tree
    queue_ms: float  # waiting for a round
    pass_ms: float  # the rounds themselves
    total_ms: float


class Decision(BaseModel):
    """The answers, by the questions' names and in their order; `decision[name]` is one of them."""

    model: str  # the model's own name
    answers: dict[str, Answer]
    usage: Usage
    joint: Joint | None = Field(default=None, exclude_if=lambda value: value is None)
    x_timing: Timing | None = None

    def __getitem__(self, name: str) -> Answer:
        """The answer to the question of that name. Raises KeyError."""
        return self.answers[name]


def as_json(value: Any) -> str:
    """JSON text of an object where text is allowed; text itself stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def extent(request: DecisionRequest, enough: int) -> int:
    """Characters that a request has about, `enough` at the most: found out without going through all of a large one."""
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
