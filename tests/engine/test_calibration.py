"""A calibration in the engine: applied to answers, told in them, and refused where it is another model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import tiny
from fixtures.calibrations import CHOICE, NOUL, QUESTIONS, of_engine, written
from fixtures.tiny_engine import checkpoint, tiny_engine

from ramet.decide.calibration import content_digest
from ramet.decision import Decision
from ramet.engine import Engine
from ramet.errors import CheckpointError, InvalidRequest
from ramet.request import DecisionRequest

STATE = "The parcel came on the third day."
AT = 0.3


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine() as made:
        yield made


@pytest.fixture(scope="module")
def data(engine: Engine) -> dict[str, Any]:
    """A calibration of the tiny model with a temperature and a threshold of one question's own."""
    request = DecisionRequest.parse({"state": "", "questions": QUESTIONS})
    threshold = {"at": AT, "wanted": "precision", "value": 0.9, "precision": None, "recall": None}
    own = {"name": "n", "type": "choice", "rows": 12, "temperature": 3.0, "threshold": threshold}
    return of_engine(engine, questions={content_digest(request.questions["which"]): own})


@pytest.fixture(scope="module")
def calibrated(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = written(tmp_path_factory.mktemp("calibrated") / "c.json", data)
    with tiny_engine(calibration=path) as made:
        yield made


def probabilities(decision: Decision, name: str) -> list[float]:
    answer = decision[name]
    return [answer.noul, 1 - answer.noul] if answer.type == "noul" else list(answer.probabilities.values())


def tempered(p: list[float], temperature: float) -> list[float]:
    powers = np.array(p) ** (1 / temperature)
    return (powers / powers.sum()).tolist()


def test_answers_hold_to_it_and_say_so(engine: Engine, calibrated: Engine) -> None:
    """Of each type: the question's own temperature, its type's, and where there is none the model's."""
    plain = engine.decide(state=STATE, questions=QUESTIONS)
    found = calibrated.decide(state=STATE, questions=QUESTIONS)
    by = {name: (answer.x_scaled.by, answer.x_scaled.temperature) for name, answer in found.answers.items()}  # type: ignore[union-attr]
    assert by == {"late": ("type", pytest.approx(np.exp(0.5))), "which": ("question", 3.0), "much": ("model", 1.0)}
    for name, (_, temperature) in by.items():
        expected = tempered(probabilities(plain, name), float(np.exp(0.5)) if name == "late" else temperature)
        assert probabilities(found, name) == pytest.approx(expected, abs=1e-9)
    assert found["much"].x_scaled.why == "it has none for a score"  # type: ignore[union-attr]
    assert calibrated.calibration is not None
    assert found.x_calibration == calibrated.calibration.digest
    assert calibrated.describe()["calibration"].startswith(f"{found.x_calibration}, fitted on 100 rows")


def test_without_one_nothing_is_said(engine: Engine) -> None:
    told = engine.decide(state=STATE, questions=QUESTIONS).model_dump(mode="json")
    assert "x_calibration" not in told
    assert all("x_scaled" not in answer for answer in told["answers"].values())
    assert engine.calibration is None


def test_a_threshold_is_held_against_the_likeliest_option(calibrated: Engine) -> None:
    found = calibrated.decide(state=STATE, questions={"any name": CHOICE})["any name"]
    assert found.x_scaled is not None
    assert found.x_scaled.threshold is not None
    assert found.x_scaled.threshold.model_dump() == {
        "reached": max(found.probabilities.values()) >= AT, "at": AT, "wanted": "precision", "value": 0.9,
    }  # fmt: skip


@pytest.mark.parametrize(("asked", "by"), [(1.0, ["request"] * 2), ({"noul": 1.0}, ["request", "question"])])
def test_a_request_has_the_last_word(engine: Engine, calibrated: Engine, asked: Any, by: list[str]) -> None:
    questions = {"late": NOUL, "which": CHOICE}
    plain = engine.decide(state=STATE, questions=questions)
    found = calibrated.decide(state=STATE, questions=questions, temperature=asked)
    assert [answer.x_scaled.by for answer in found.answers.values()] == by  # type: ignore[union-attr]
    assert probabilities(found, "late") == probabilities(plain, "late")
    assert found["late"].x_scaled.threshold is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"debias": 3}, "it was fitted with the model's own x_debias"),
        ({"method": "options"}, 'it was fitted with x_method "letters"'),
    ],
)
def test_a_request_that_is_read_otherwise(
    engine: Engine, calibrated: Engine, options: dict[str, Any], why: str
) -> None:
    """The answer is the one without a calibration, and says why."""
    plain = engine.decide(state=STATE, questions=QUESTIONS, **options)
    found = calibrated.decide(state=STATE, questions=QUESTIONS, **options)
    for name, answer in found.answers.items():
        assert (answer.x_scaled.by, answer.x_scaled.why) == ("model", why)  # type: ignore[union-attr]
        assert probabilities(found, name) == probabilities(plain, name)


def test_one_that_was_fitted_on_means_over_orders(engine: Engine, data: dict[str, Any], tmp_path: Path) -> None:
    """It scales the mean, as it was fitted: an answer says it as its probabilities alone do."""
    plain = engine.decide(state=STATE, questions={"which": CHOICE}, debias=3)
    path = written(tmp_path / "c.json", data | {"reading": {"x_debias": 3}})
    with tiny_engine(calibration=path) as made:
        found = made.decide(state=STATE, questions={"which": CHOICE}, debias=3)
        alone = made.decide(state=STATE, questions={"which": CHOICE})
    assert probabilities(found, "which") == pytest.approx(tempered(probabilities(plain, "which"), 3.0), abs=1e-9)
    assert alone["which"].x_scaled.why == "it was fitted with x_debias 3"  # type: ignore[union-attr]


def test_a_checkpoint_has_its_own(data: dict[str, Any], tmp_path: Path) -> None:
    """It is used, and its file is no part of the model's fingerprint, which it names."""
    directory = shutil.copytree(checkpoint("qwen3"), tmp_path / "c")
    written(directory / "calibration.json", data)
    with tiny_engine(source=directory) as made:
        assert made.model.fingerprint == data["model"]["fingerprint"]
        assert made.calibration is not None
        own = made.calibration.digest
    other = written(tmp_path / "other.json", data | {"questions": {}})
    with tiny_engine(source=directory, calibration=other) as made:
        assert made.calibration is not None
        assert made.calibration.digest != own


def test_a_gguf_files_own(data: dict[str, Any], tmp_path: Path) -> None:
    """In a directory that was named. Beside a file that was named itself it may be another's, and is left alone."""
    (tmp_path / "model.gguf").symlink_to(tiny.gguf_of(checkpoint("qwen3")))
    with tiny_engine(source=tmp_path) as made:
        own = of_engine(made)
    written(tmp_path / "calibration.json", own)
    with tiny_engine(source=tmp_path) as made:
        assert made.calibration is not None
    with tiny_engine(source=tmp_path / "model.gguf") as made:
        assert made.calibration is None


def test_a_checkpoints_own_of_another_kind(data: dict[str, Any], tmp_path: Path) -> None:
    directory = shutil.copytree(checkpoint("qwen3"), tmp_path / "c")
    written(directory / "calibration.json", {"temperature": 1.3})
    with pytest.raises(CheckpointError, match=r"no calibration of Ramet's.*or move this file away"):
        tiny_engine(source=directory)
    written(directory / "calibration.json", data | {"model": data["model"] | {"fingerprint": "0" * 32}})
    with pytest.raises(CheckpointError, match=r"the checkpoint's own calibration\.json is of another model"):
        tiny_engine(source=directory)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"fingerprint": "0" * 32}, "is of another model"),
        ({"asked": "0" * 32}, "was fitted by another release"),
        ({"method": "options"}, 'load it with method="options"'),
    ],
)
def test_one_of_another_model(data: dict[str, Any], model: dict[str, str], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", data | {"model": data["model"] | model})
    with pytest.raises(InvalidRequest, match=words) as caught:
        tiny_engine(calibration=path)
    assert caught.value.field == "calibration"


def test_what_is_no_calibration(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"T": 2}))
    for given in (path, str(path), tmp_path / "none.json"):
        with pytest.raises(InvalidRequest, match="fit one with `ramet calibrate`"):
            tiny_engine(calibration=given)
    with pytest.raises(InvalidRequest, match="is a file, not 3"):
        tiny_engine(calibration=3)
