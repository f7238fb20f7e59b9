"""`ramet calibrate` from end to end: what is written, printed and drawn, that an engine holds to it, and bad input."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixtures.calibrations import CHOICE, NOUL, SCORE
from fixtures.import_graph import reached
from fixtures.tiny_engine import checkpoint, tiny_engine

from ramet import cli
from ramet.decide.calibration import read_calibration

SMALL = ["--device", "cpu", "--dtype", "float32", "--cache-bytes", str(1 << 24)]
LABELS: dict[str, tuple[Any, ...]] = {"late": (True, False), "which": ("a", "b", "c"), "much": ("little", 1, 2)}
QUESTIONS = {"late": NOUL, "which": CHOICE, "much": SCORE}


def row(number: int, *names: str, **changes: Any) -> dict[str, Any]:
    """A row whose labels go round."""
    asked = names or tuple(QUESTIONS)
    gold = {name: LABELS[name][number % len(LABELS[name])] for name in asked}
    questions = {name: QUESTIONS[name] for name in asked}
    return {"id": number, "state": f"The parcel {number} came late.", "questions": questions, "gold": gold, **changes}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def calibrate(rows: Path, output: Path, *arguments: Any) -> Result:
    given = ("calibrate", rows, "-o", output, "-m", checkpoint("qwen3"), *SMALL, *arguments)
    return CliRunner().invoke(cli.main, [*map(str, given)])


def told(result: Result) -> str:
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Of 24 rows with three labels each, one of them twice with another label, one without labels."""
    directory = tmp_path_factory.mktemp("calibrate")
    rows = [*(row(number) for number in range(24)), {**row(3, "which"), "gold": {"which": "b"}}]
    rows[-1]["state"] = rows[3]["state"]
    source = write(directory / "rows.jsonl", *rows, {"state": "x", "questions": {"late": NOUL}}, "")
    output = directory / "calibration.json"
    plot = directory / "reliability.svg"
    return output, calibrate(source, output, "--precision", "0.3", "--per-question", "--plot", plot, "--folds", "3")


def test_what_is_written(fitted: tuple[Path, Result]) -> None:
    output, result = fitted
    assert result.exit_code == 0, result.output
    found = read_calibration(output)
    assert set(found.temperatures) == {"noul", "choice", "score"}
    assert found.fitted_on.model_dump() == {
        "rows": 25, "decisions": 73, "duplicates": 1, "conflicts": 1, "folds": 3, "seed": 0,
    }  # fmt: skip
    assert list(found.quality) == ["all", "noul", "choice", "score"]
    assert found.quality["choice"].after.decisions == 25
    assert {each.name for each in found.questions.values()} == set(QUESTIONS)
    assert all(each.temperature is not None for each in found.questions.values())
    assert f"written: {output}, {found.digest}, fitted on 25 rows" in told(result)


def test_what_is_printed(fitted: tuple[Path, Result]) -> None:
    text = fitted[1].stdout
    assert "25 rows, 73 labelled decisions" in text
    assert "duplicates: 1 decision about" in text
    assert "conflict: lines 4, 25 have the same state and different labels for 'which'" in text
    assert "on held-out rows (3 folds), with 95% intervals" in text
    assert "thresholds for a precision of 0.3" in text
    figures = [line.split() for line in text.splitlines() if {"before", "after"} & set(line.split())]
    assert [line[0] for line in figures] == ["all", "after", "noul", "after", "choice", "after", "score", "after"]


def test_what_is_drawn(fitted: tuple[Path, Result]) -> None:
    text = (fitted[0].parent / "reliability.svg").read_text()
    assert text.count("<svg") == 1


def test_an_engine_holds_to_it(fitted: tuple[Path, Result]) -> None:
    with tiny_engine(calibration=fitted[0]) as engine:
        decision = engine.decide(state="The parcel 3 came late.", questions={"w": CHOICE, "l": NOUL})
    for answer in decision.answers.values():
        assert answer.x_scaled is not None
        assert answer.x_scaled.by == "question"


def test_thresholds_may_be_out_of_reach(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", *(row(number, "which") for number in range(12)), row(0, "late"))
    source = write(source, *(row(number, "which") for number in range(12)))
    result = calibrate(source, tmp_path / "c.json", "--precision", "1.0", "--folds", "2")
    assert result.exit_code == 0, result.output
    out_of_reach = "no threshold reaches a precision of 1: which" in result.stdout
    found = read_calibration(tmp_path / "c.json")
    assert out_of_reach == (not found.questions)


BAD: list[tuple[list[Any], str]] = [
    (
        [row(0), row(1, gold={"which": "d", "late": "yes"})],
        "2 labels are unknown: line 2, question 'which': 'd' is no label of this choice: 'a', 'b', 'c'; "
        "line 2, question 'late': 'yes' is no label of a noul: true or false",
    ),
    (
        [row(0, gold={"much": 3})],
        "1 label is unknown: line 1, question 'much': 3 is no label of this score: a number",
    ),
    ([row(0, gold={"other": 1})], "the row asks no such question; it asks 'late', 'which', 'much'"),
    ([row(n, gold={"which": "d"}) for n in range(9)], "9 labels are unknown: line 1"),
    ([row(0, gold=None), row(1, gold={"late": None})], "none of its 2 rows has a label"),
    (["{"], "line 1: is no JSON"),
    ([row(0, gold=[1])], "line 1: `gold` is no object of labels by question"),
    ([row(0), {"state": "x", "gold": {"q": 1}}], "line 2: questions: Field required"),
    ([row(0), row(1, x_debias=2)], "lines 1 and 2 are to be read in different ways"),
    (
        [row(n, x_method="options") for n in range(12)],
        "the rows have x_method options, and the model is read by",
    ),
    ([row(n, "late") for n in range(9)], "there are 9 labelled nouls, duplicates counted once, and a fit takes 10"),
    ([row(0, "late")] * 12, "there is 1 labelled noul, duplicates counted once"),
    ([row(2 * n, "late") for n in range(12)], "all 12 labels of a noul are 'yes': one class alone"),
]


@pytest.mark.parametrize(("rows", "words"), BAD)
def test_bad_rows(rows: list[Any], words: str, tmp_path: Path) -> None:
    """Found before a model is loaded, but for what the model decides."""
    model = () if "the model is read by" in words else ("-m", tmp_path / "no model")
    result = calibrate(write(tmp_path / "rows.jsonl", *rows), tmp_path / "c.json", *model)
    assert result.exit_code == 2
    assert words in told(result)
    assert not (tmp_path / "c.json").exists()


def test_rows_that_have_no_answer(tmp_path: Path) -> None:
    """They are left out, and said; where all are, that is an error."""
    long = [row(n, "late", state=f"{n} {'word ' * 3000}") for n in range(12)]
    source = write(tmp_path / "rows.jsonl", *(row(n, "late") for n in range(12)), long[0])
    result = calibrate(source, tmp_path / "c.json", "--max-request-tokens", "500")
    assert result.exit_code == 0, result.output
    assert "left out: 1 of 13 rows have no answers, the first at line 13" in told(result)
    result = calibrate(write(source, *long), tmp_path / "c.json", "--max-request-tokens", "500")
    assert result.exit_code == 2
    assert "12 of 12 rows have no answers" in told(result)


def test_bad_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "rows.jsonl", row(0))
    output = tmp_path / "c.json"
    for arguments, words in [
        (("--precision", "0.9", "--recall", "0.9"), "for --precision or for --recall, not for both"),
        (("--plot", "c.txt"), "does not end in .png, .svg, .pdf"),
        (("--precision", "0"), "0.0 is not in the range"),
        (("--folds", "1"), "1 is not in the range"),
    ]:
        result = calibrate(source, output, *arguments)
        assert (result.exit_code, words in told(result)) == (2, True), result.stderr
    (tmp_path / "link.json").symlink_to(source)
    assert "--output would overwrite the input" in told(calibrate(source, tmp_path / "link.json"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "this needs scikit-learn and scipy: pip install 'ramet[calibrate]'" in told(calibrate(source, output))


def test_the_libraries_are_no_ones_but_this_commands() -> None:
    assert not {"sklearn", "scipy"} & set(reached("ramet.engine.engine")) | {"sklearn"} & set(reached("ramet.cli"))
