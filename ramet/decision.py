"""Decision: the answers to a request, and what they took.

The field names are those of the System One wire format. What Ramet adds begins with ``x_``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ramet.values import Text

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
