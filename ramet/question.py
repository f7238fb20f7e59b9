"""Questions: what a request may ask about its state. The field names are those of the System One wire format."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from ramet.problems import FewFields, check_count, entry_by_entry
from ramet.values import Name, Text, is_blank

MAX_QUESTIONS = 1 << 16
MAX_OPTIONS = 255
MAX_LEVELS = 10


def _few(most: int, what: str) -> BeforeValidator:
    return BeforeValidator(partial(check_count, most=most, what=what))


class Outcomes(FewFields):
    """Descriptions of a noul's two outcomes; either may be missing."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    true: Text | None = None
    false: Text | None = None


def _typed(schema: dict[str, Any]) -> None:
    """Require a question's type, which the wire format needs and Python's classes imply."""
    schema["required"] = ["type", *schema.get("required", ())]


_SOMETHING = {
    "anyOf": [
        {"type": "string", "pattern": r"\S"},
        {"type": "object", "minProperties": 1},
        {"type": "array", "minItems": 1},
    ]
}


def _described(schema: dict[str, Any]) -> None:
    """Add what the validator of `Noul` checks."""
    _typed(schema)
    outcomes = [{"required": [name], "properties": {name: _SOMETHING}} for name in ("true", "false")]
    described = {"type": "object", "anyOf": outcomes}
    ways = (("instructions", _SOMETHING), ("criteria", described))
    schema["anyOf"] = [{"required": [name], "properties": {name: how}} for name, how in ways]


class Noul(FewFields):
    """Is it true? Answered with the probability that it is. Needs instructions or a described outcome."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_described)

    type: Literal["noul"] = "noul"
    instructions: Text | None = None
    criteria: Outcomes | None = None

    @model_validator(mode="after")
    def _has_words(self) -> Noul:
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
