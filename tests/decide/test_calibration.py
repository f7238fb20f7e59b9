"""The calibration file: what it may say, what it is refused for, and what it says of a question."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fixtures.calibrations import CHOICE, NOUL, calibration, spelled, written

from ramet.decide.calibration import Calibration, TypeTemperature, content_digest, read_calibration
from ramet.errors import CheckpointError
from ramet.request import DecisionRequest

THRESHOLD: dict[str, Any] = {"at": 0.7, "wanted": "precision", "value": 0.9, "precision": None, "recall": None}


def question(data: dict[str, Any]) -> Any:
    return DecisionRequest.parse({"state": "", "questions": {"q": data}}).questions["q"]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    own = {"name": "late", "type": "noul", "rows": 30, "temperature": 2.0, "threshold": THRESHOLD}
    made = calibration(questions={content_digest(question(NOUL)): own})
    path = tmp_path / "c.json"
    path.write_text(made.model_dump_json(indent=2))
    assert read_calibration(path) == made
    assert read_calibration(path).digest == made.digest
    assert calibration().digest != made.digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "laya"}, r"no calibration of Ramet's: its format is 'laya', not ramet-calibration; fit one with"),
        ({"version": 2}, "is of version 2, and read is version 1; fit one with `ramet calibrate` anew"),
        ({"more": 1}, "more: unknown field"),
        ({"temperatures": {"noul": {"a": 1e9, "b": 0.0, "least": 2, "most": 2, "rows": 1}}}, r"temperatures\.noul\.a"),
        ({"temperatures": {"noul": {"a": "0", "b": 0.0, "least": 2, "most": 2, "rows": 1}}}, r"temperatures\.noul\.a"),
        ({"temperatures": {"noul": {"a": 0.0, "b": 0.0, "least": 3, "most": 2, "rows": 1}}}, "least is above most"),
        ({"temperatures": {"colour": {"a": 0.0, "b": 0.0, "least": 2, "most": 2, "rows": 1}}}, r"temperatures\.colour"),
        ({"questions": {"late": {"name": "late", "type": "noul", "rows": 1}}}, r"questions\.late"),
        ({"reading": {"x_debias": 99}}, r"reading\.x_debias"),
        ({"model": {"name": "m", "fingerprint": "0" * 32, "method": "words", "asked": "1" * 32}}, r"model\.method"),
    ],
)
def test_what_is_no_calibration(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", spelled(**changes))
    with pytest.raises(CheckpointError, match=words) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read as JSON"),
        ("[]", "holds list"),
        ('{"format": "ramet-calibration", "format": "x"}', "is there twice"),
        (json.dumps(spelled()).replace("0.5", "NaN", 1), "NaN is no number"),
        (json.dumps(spelled()).replace("0.5", "1e999", 1), "too large a number"),
    ],
)
def test_what_is_no_json(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=words):
        read_calibration(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not there; fit one with `ramet calibrate`"):
        read_calibration(tmp_path / "c.json")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="has more than 16777216 bytes"):
        read_calibration(path)


def test_temperatures_by_the_number_of_options() -> None:
    """Beyond those that were there the nearest counts, and none is beyond what a request may ask for."""
    fitted = TypeTemperature(a=0.2, b=0.5, least=2, most=4, rows=10)
    assert fitted.of(3) == pytest.approx(math.exp(0.2 + 0.5 * math.log(3)))
    assert fitted.of(255) == fitted.of(4)
    assert fitted.of(1) == fitted.of(2)
    assert TypeTemperature(a=20.0, least=2, most=2, rows=10).of(2) == 100.0


def test_a_question_is_known_by_its_content() -> None:
    same = {**CHOICE, "criteria": dict(CHOICE["criteria"])}
    assert content_digest(question(CHOICE)) == content_digest(question(same))
    turned = {**CHOICE, "criteria": dict(reversed(CHOICE["criteria"].items()))}
    others = [turned, {**CHOICE, "instructions": "Which one?"}, {**CHOICE, "criteria": {"a": None, "b": None}}, NOUL]
    digests = {content_digest(question(each)) for each in (CHOICE, *others)}
    assert len(digests) == 5


def test_another_model_method_and_wording() -> None:
    made = calibration()
    made.check("letters", "1" * 32, "0" * 32)
    made.check("letters", "1" * 32)
    for arguments, words in [
        (
            ("letters", "1" * 32, "2" * 32),
            "is of another model, tiny with the fingerprint 00000000, and this one's",
        ),
        (("options", "1" * 32, "0" * 32), 'is of the method "letters", and this model is read by "options": load it'),
        (("letters", "2" * 32, "0" * 32), "was fitted by another release"),
    ]:
        with pytest.raises(ValueError, match=words):
            Calibration.check(made, *arguments)  # type: ignore[arg-type]
