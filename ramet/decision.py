"""Decision: the answers to a request, and what they took.

The field names are those of the System One wire format. What Ramet adds begins with ``x_``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ramet.values import Text

_WHERE_CANVASES: Any = Field(default=None, exclude_if=lambda value: value is None)
_WHERE_DEBIASED: Any = Field(default=None, exclude_if=lambda value: value is None)
_WHERE_SAMPLED: Any = Field(default=None, exclude_if=lambda value: value is None)
_WHERE_CALIBRATED: Any = Field(default=None, exclude_if=lambda value: value is None)


class ReachedThreshold(BaseModel):
    """Whether an answer is to be taken, by a threshold that was fitted for its question."""

    reached: bool  # whether the probability is at least `at`: of a noul that of true, else that of the likeliest option
    at: float
    wanted: Literal["precision", "recall"]  # what the threshold was fitted for
    value: float  # the precision or recall that was wanted


class Scaled(BaseModel):
    """What the log-probabilities of a question's options were divided by, where a calibration is loaded."""

    temperature: float
    by: Literal["request", "question", "type", "model"]  # who said so; `question` and `type` are the calibration's
    why: str | None = Field(default=None, exclude_if=lambda value: value is None)  # the calibration was not applied
    threshold: ReachedThreshold | None = Field(default=None, exclude_if=lambda value: value is None)


class Debiased(BaseModel):
    """What took a model's liking for labels, places and wordings off an answer."""

    orders: int  # of the options, averaged
    prior: float  # how much of each option's log-probability after an empty state was taken off, from 0 to 1


class NoulAnswer(BaseModel):
    """The answer to a noul. All numbers are probabilities, from 0 to 1."""

    model_config = ConfigDict(allow_inf_nan=False)

    type: Literal["noul"] = "noul"
    noul: float  # the probability of true
    x_label_mass: float  # the probability that the model gives to all labels together, before they are normalised
    x_standard_error: float | None = _WHERE_SAMPLED  # of `noul`, over the samples
    x_scaled: Scaled | None = _WHERE_CALIBRATED  # by which temperature, and whether a threshold is reached
    x_debiased: Debiased | None = _WHERE_DEBIASED  # what was taken off


class ChoiceAnswer(BaseModel):
    """The answer to a choice. All numbers are probabilities, from 0 to 1, but for `confidence`."""

    model_config = ConfigDict(allow_inf_nan=False)

    type: Literal["choice"] = "choice"
    choice: str  # the likeliest option's name
    confidence: float  # from 0 to 1, by the formula that `x_confidence` names
    probabilities: dict[str, float]  # of the options, by name; they sum to 1
    x_label_mass: float  # as for a noul
    x_standard_error: dict[str, float] | None = _WHERE_SAMPLED  # of the probabilities
    x_scaled: Scaled | None = _WHERE_CALIBRATED  # as a noul's
    x_debiased: Debiased | None = _WHERE_DEBIASED  # as a noul's


class ScoreAnswer(BaseModel):
    """The answer to a score. `score` is in levels, counted from 0; probabilities are from 0 to 1."""

    model_config = ConfigDict(allow_inf_nan=False)

    type: Literal["score"] = "score"
    score: float  # the expected level, the sum of i * p_i
    confidence: float  # from 0 to 1, by the formula that `x_confidence` names
    legend: dict[str, Text]  # the levels' descriptions, by the level's number as text
    probabilities: dict[str, float]  # of the levels, by the level's number as text; they sum to 1
    x_label_mass: float  # as for a noul
    x_standard_error: dict[str, float] | None = _WHERE_SAMPLED  # of the probabilities
    x_scaled: Scaled | None = _WHERE_CALIBRATED  # as a noul's
    x_debiased: Debiased | None = _WHERE_DEBIASED  # as a noul's


Answer = Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]


class JointCanvas(BaseModel):
    """A canvas that answers several questions: their names, and the row from which each is read."""

    questions: list[str]
    width: int  # rows of the canvas, each of one token
    slots: list[int]  # rows of the canvas, counted from 0


class Joint(BaseModel):
    """How the questions of a joint read were put on canvases; each is drawn anew for each sample and order."""

    canvases: list[JointCanvas]


class Usage(BaseModel):
    """What a decision took, in tokens."""

    input_tokens: int  # tokens of the tree: one that several questions share counts once
    output_tokens: int  # one a question
    x_cached_tokens: int = 0  # input tokens that were found in the cache, and not computed again
    x_engine_steps: int | None = _WHERE_CANVASES  # rounds that computed a part of the decision
    x_fell_back: bool | None = _WHERE_CANVASES  # whether a canvas had no room in the round that ended its prompt


class Timing(BaseModel):
    """What a decision took, in milliseconds of wall-clock time."""

    plan_ms: float  # to make the tree
    queue_ms: float  # to wait for a round
    pass_ms: float  # to run the rounds
    total_ms: float  # from the request to the answer


class Decision(BaseModel):
    """The answers, by the questions' names and in their order; `decision[name]` is one of them."""

    model: str  # the model's own name
    answers: dict[str, Answer]
    usage: Usage
    joint: Joint | None = Field(default=None, exclude_if=lambda value: value is None)
    x_calibration: str | None = _WHERE_CALIBRATED  # the digest of the calibration that is loaded
    x_timing: Timing | None = None

    def __getitem__(self, name: str) -> Answer:
        """The answer to the question of that name. Raises KeyError."""
        return self.answers[name]
