"""The bench of quality: its sets, where they come from, and its figures."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fixtures.tiny_engine import tiny_engine

from ramet import cli
from ramet.bench.core.document import nobody
from ramet.bench.quality import sources
from ramet.bench.quality.facts import facts
from ramet.bench.quality.injection import injection
from ramet.bench.quality.items import Item, ItemSet
from ramet.bench.quality.readings import QuestionReading
from ramet.bench.quality.run import _area, run
from ramet.bench.quality.sources import Source, Sources
from ramet.bench.quality.topics import N_OPTIONS, topics
from ramet.errors import InvalidRequest, RametError
from ramet.request import DecisionRequest


def here(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """Small files in the place of the repositories'."""

    def put(source: Source, text: str) -> Source:
        path = directory / source.repository / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return replace(source, sha256=hashlib.sha256(text.encode()).hexdigest())

    intents = [f"intent_{n}" for n in range(12)]
    clinc = put(sources.CLINC, json.dumps({"test": [[f"say {n}", intents[n % 12]] for n in range(40)]}))
    lines = "".join(f"ask {n},{intents[n % 12]}\n" for n in range(40))
    monkeypatch.setattr("ramet.bench.quality.topics.CLINC", clinc)
    monkeypatch.setattr("ramet.bench.quality.topics.BANKING", put(sources.BANKING, "text,category\n" + lines))
    texts = [put(each, "".join(f'{{"context": "a {i} {n}\\nb"}}\n' for n in range(9))) for i, each in
             enumerate(sources.CONTEXTS)]  # fmt: skip
    attacks = [put(each, json.dumps({"kind": [f"Do {n}." for n in range(5)]})) for each in sources.ATTACKS]
    monkeypatch.setattr("ramet.bench.quality.injection.CONTEXTS", texts)
    monkeypatch.setattr("ramet.bench.quality.injection.ATTACKS", attacks)
    return Sources(directory)


def check(items: ItemSet) -> None:
    """Every item is a request, and what is right is one of its options."""
    for item in items.items:
        asked = DecisionRequest.parse({"state": item.state, "questions": {"q": item.question}})
        assert item.gold in (item.question["criteria"] if asked.questions["q"].type == "choice" else ("true", "false"))


def test_facts_are_half_true_and_the_same_every_time() -> None:
    found = facts(300)
    check(found)
    assert Counter(item.gold for item in found.items) == {"true": 150, "false": 150}
    assert found == facts(300)
    assert len({(item.state, item.question["instructions"]) for item in found.items}) == 300


def test_topics_and_injections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = topics(here(tmp_path, monkeypatch), 20)
    check(found)
    assert {len(item.question["criteria"]) for item in found.items} == {N_OPTIONS}
    planted = injection(Sources(tmp_path), 20)
    check(planted)
    assert Counter(item.gold for item in planted.items) == {"true": 10, "false": 10}
    assert all(("Do " in item.state) == (item.gold == "true") for item in planted.items)


def test_halves_are_apart() -> None:
    whole = facts(20)
    halves = whole.half("choose"), whole.half("report")
    assert [len(half.items) for half in halves] == [10, 10]
    assert not {item.state for item in halves[0].items} & {item.state for item in halves[1].items}
    assert whole.half("all") == whole


def test_a_file_that_is_another_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RametError, match=r"clone https://github\.com/clinc/oos-eval"):
        Sources(tmp_path).text(sources.CLINC)
    here(tmp_path, monkeypatch)
    with pytest.raises(RametError, match=f"is not {sources.CLINC.path} at commit"):
        Sources(tmp_path).text(sources.CLINC)


@pytest.mark.parametrize("text", ["letters:x", "letters:1:2:3", "options:1:", "letters:1.5"])
def test_what_is_no_reading(text: str) -> None:
    with pytest.raises(InvalidRequest, match="METHOD"):
        QuestionReading.parse(text)


def test_readings() -> None:
    assert QuestionReading.parse("own").fields == {}
    assert QuestionReading.parse("letters:4:0.5").fields == {"x_method": "letters", "x_debias": 4, "x_prior": 0.5}


def test_the_area_under_the_curve() -> None:
    p, is_true = np.array([0.9, 0.8, 0.3, 0.3]), np.array([True, True, True, False])
    assert _area(p, is_true)["value"] == pytest.approx((1 + 1 + 0.5) / 3)
    low, high = _area(p, is_true)["interval"]
    assert 0 <= low <= high <= 1


def test_a_run(tmp_path: Path) -> None:
    choice = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None, "c": None, "d": None}}
    chosen = ItemSet("few", "ours", [Item(f"state {n}", choice, "abcd"[n % 4]) for n in range(12)])
    readings = [QuestionReading.parse(text) for text in ("letters", "letters:2", "options")]
    with tiny_engine("llama") as engine:
        found = run(engine, [chosen, facts(12)], readings, nobody())
    assert [(row.set, row.reading) for row in found.rows] == [
        (name, reading.name) for reading in readings for name in ("few", "facts")
    ]
    one, two, options = (row for row in found.rows if row.set == "few")
    assert one.moved is not None
    assert one.moved > 1e-3
    assert two.moved == pytest.approx(0, abs=1e-5)  # turned by half the list, two orders are the same two
    assert options.moved == pytest.approx(0, abs=1e-5)
    assert (one.items, one.majority, one.area) == (12, 0.25, None)
    assert all(sum(p) == pytest.approx(1, abs=1e-4) for row in found.rows for p in row.probabilities)
    found.write(tmp_path / "q.json")
    assert json.loads((tmp_path / "q.json").read_text())["bench"] == "quality"
    assert [table.row_count for table in found.tables()] == [6]


def test_a_set_that_there_is_not() -> None:
    result = CliRunner().invoke(cli.main, ["bench", "quality", "--sets", "topics,moods"])
    assert result.exit_code == 2
    assert "'moods' is none of topics, facts, injection" in result.stderr
