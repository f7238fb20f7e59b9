"""Calibration: what labelled rows say of a model's probabilities, as data; its file, and what it says of a question.

`ramet calibrate` fits one, and writes it. It holds for one model, asked in one way: whoever applies it checks both.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ramet.errors import CheckpointError
from ramet.foreign import json_object, read_bytes
from ramet.problems import invalid
from ramet.question import MAX_OPTIONS, MAX_QUESTIONS, Noul, Question
from ramet.quoting import shown
from ramet.request import DecisionRequest, Method
from ramet.values import TEMPERATURES, Name

FORMAT, VERSION = "ramet-calibration", 1
MAX_BYTES = 16 << 20
REMEDY = "fit one with `ramet calibrate`"

Kind = Literal["noul", "choice", "score"]
Wanted = Literal["precision", "recall"]
Count = Annotated[int, Field(ge=0, le=1 << 31)]
Options = Annotated[int, Field(ge=1, le=MAX_OPTIONS)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{16,64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Interval = tuple[float, float]


class Written(BaseModel):
    """A part of the file: frozen, typed, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CalibratedModel(Written):
    """The model that was asked. asked: a digest of how it asks; see `Decider.asked`."""

    name: Name
    fingerprint: Digest
    method: Method
    asked: Digest


class ReadAs(Written):
    """How the questions were read, as far as that changes probabilities: fields of the request."""

    x_debias: Annotated[int, Field(ge=1, le=16)] | None = None
    x_prior: Share | None = None
    x_samples: Annotated[int, Field(ge=1, le=32)] = 1
    x_steps: Annotated[int, Field(ge=1, le=8)] = 1
    joint: bool = False

    @classmethod
    def of(cls, request: DecisionRequest) -> Self:
        return cls(**{name: getattr(request, name) for name in cls.model_fields})

    @property
    def averages(self) -> bool:
        """Whether probabilities are means over several orders or draws."""
        return (self.x_debias or 1) > 1 or self.x_samples > 1


class TypeTemperature(Written):
    """log T = a + b ln n of a type's questions with n options. Beyond the numbers of options that were there, from
    `least` to `most`, the nearest of them counts: nothing is known of others."""

    a: Annotated[float, Field(ge=-20, le=20)]
    b: Annotated[float, Field(ge=-20, le=20)] = 0.0
    least: Options
    most: Options
    rows: Count

    def of(self, n_options: int) -> float:
        """The temperature of a question, within those that a request may ask for."""
        n = min(max(n_options, self.least), self.most)
        return bounded(math.exp(self.a + self.b * math.log(n)))


class HeldOut(Written):
    """A share of decisions that the fit had not seen, and its interval."""

    count: Count
    of: Count
    interval: tuple[Share, Share]


class Threshold(Written):
    """From which probability on an answer is taken: of a noul that of true, of others that of the likeliest option.

    It was chosen for a wanted precision (the share of right ones among the taken), or recall (the share of taken ones
    among the right). `precision` and `recall` are those on held-out rows; None where there was nothing to divide by.
    """

    at: Share
    wanted: Wanted
    value: Share
    precision: HeldOut | None
    recall: HeldOut | None


class CalibratedQuestion(Written):
    """A question by its content: a temperature of its own, a threshold, or both. The name is for people."""

    name: Name
    type: Kind
    rows: Count
    temperature: Annotated[float, Field(ge=TEMPERATURES[0], le=TEMPERATURES[1])] | None = None
    threshold: Threshold | None = None


class Figure(Written):
    value: float
    interval: Interval | None


class Quality(Written):
    """How good probabilities are on held-out decisions; see docs/calibration.md."""

    decisions: Count
    accuracy: Figure
    calibration_error: Figure
    brier: Figure
    log_loss: Figure


class BeforeAfter(Written):
    """Quality without the calibration, and with it."""

    before: Quality
    after: Quality


class FittedOn(Written):
    """The labelled rows, and how they were split to check the fit."""

    rows: Count
    decisions: Count
    duplicates: Count
    conflicts: Count
    folds: Annotated[int, Field(ge=2, le=1000)]
    seed: int


class Calibration(Written):
    """The file. `temperatures` by type; `questions` by the digest of their content."""

    format: Literal["ramet-calibration"] = "ramet-calibration"
    version: Literal[1] = 1
    model: CalibratedModel
    reading: ReadAs
    temperatures: Annotated[dict[Kind, TypeTemperature], Field(max_length=3)]
    questions: Annotated[dict[Digest, CalibratedQuestion], Field(max_length=MAX_QUESTIONS)] = {}
    fitted_on: FittedOn
    quality: Annotated[dict[str, BeforeAfter], Field(max_length=4)] = {}

    @model_validator(mode="after")
    def _numbers_of_options(self) -> Self:
        for kind, each in self.temperatures.items():
            if each.least > each.most:
                raise ValueError(f"temperatures.{kind}: least is above most")
        return self

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for equal calibrations."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def temperature(
        self, question: Question, own: CalibratedQuestion | None
    ) -> tuple[float | None, Literal["question", "type"]]:
        """Of a question, and whether it is its own or its type's; None where neither was fitted. own: what there is of
        the question itself."""
        if own is not None and own.temperature is not None:
            return own.temperature, "question"
        of_type = self.temperatures.get(question.type)
        return None if of_type is None else of_type.of(n_options(question)), "type"

    def summary(self) -> str:
        """In a line, for people."""
        fitted = ", ".join([*self.temperatures, *([f"{len(self.questions)} questions"] if self.questions else [])])
        return f"{self.digest}, fitted on {self.fitted_on.rows} rows ({fitted})"

    def check(self, method: Method, asked: str, fingerprint: str | None = None) -> None:
        """Raise ValueError, which says the remedy, where it is of another model or of another way to ask."""
        own = self.model
        if fingerprint is not None and own.fingerprint != fingerprint:
            raise ValueError(
                f"is of another model, {own.name} with the fingerprint {own.fingerprint[:8]}, and this one's is "
                f"{fingerprint[:8]}: {REMEDY} of this model"
            )
        if own.method != method:
            raise ValueError(
                f'is of the method "{own.method}", and this model is read by "{method}": load it with '
                f'method="{own.method}" (--method), or {REMEDY} of this one'
            )
        if own.asked != asked:
            raise ValueError(f"was fitted by another release, which asks this model in other words: {REMEDY} anew")


def bounded(temperature: float) -> float:
    """The nearest temperature that a request may ask for."""
    low, high = TEMPERATURES
    return min(max(temperature, low), high)


def n_options(question: Question) -> int:
    return 2 if isinstance(question, Noul) else len(question.criteria)


def content_digest(question: Question) -> str:
    """32 hexadecimal digits of what a question says: its type, instructions and criteria, in their order. Its name
    counts for nothing."""
    text = json.dumps(question.model_dump(mode="json", include={"type", "instructions", "criteria"}), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_calibration(path: Path) -> Calibration:
    """A file's calibration. Raises CheckpointError, in one line, for what is none."""
    try:
        data = json_object(read_bytes(path, MAX_BYTES), str(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not there; {REMEDY}") from error
    return parsed(data, str(path))


def parsed(data: Mapping[str, Any], where: str) -> Calibration:
    """The calibration that an object spells. Raises CheckpointError."""
    if data.get("format") != FORMAT:
        found = shown(data.get("format"))
        raise CheckpointError(f"{where} is no calibration of Ramet's: its format is {found}, not {FORMAT}; {REMEDY}")
    if data.get("version") != VERSION:
        raise CheckpointError(
            f"{where} is of version {shown(data.get('version'))}, and read is version {VERSION}; {REMEDY} anew"
        )
    try:
        return Calibration.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise CheckpointError(f"{where} cannot be read: {invalid(error)}; {REMEDY} anew") from error
