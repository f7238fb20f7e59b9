"""The script that docs/agreement.md begins with: a checkpoint of random weights that answers, and rows to ask it."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from ramet.engine import Engine
from ramet.request import DecisionRequest

SCRIPT = Path(__file__).parents[2] / "examples" / "random_diffusion.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("random_diffusion", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ask(monkeypatch: pytest.MonkeyPatch, script: ModuleType, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, words)])
    script.main()


def test_rows_are_cases_with_a_question_of_every_type(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ask(monkeypatch, script, "rows", tmp_path / "rows.jsonl", "--count", 5)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in rows}) == 5
    for row in rows:
        kinds = [question["type"] for question in row["questions"].values()]
        assert sorted(set(kinds)) == sorted(kinds)
        DecisionRequest.parse({name: row[name] for name in ("state", "questions")})


@pytest.mark.slow
@pytest.mark.gemma3_270m
def test_the_checkpoint_answers(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ask(monkeypatch, script, "checkpoint", tmp_path / "dg", "--shape", "tiny")
    questions = {name: {"type": "noul", "instructions": f"Is it {name}?"} for name in ("late", "lost")}
    request = DecisionRequest.parse({"state": "The parcel is late.", "questions": questions})
    with Engine.load(tmp_path / "dg", dtype="float32", threads=1) as engine:
        first, again = engine.decide(request), engine.decide(request)
    assert first.answers.keys() == {"late", "lost"}
    assert [a.x_label_mass for a in first.answers.values()] == pytest.approx(
        [a.x_label_mass for a in again.answers.values()], rel=1e-4
    )
