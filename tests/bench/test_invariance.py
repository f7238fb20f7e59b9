"""The bench of the same bits: loads that can be drawn again, and differences that are noticed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fixtures import tiny

from ramet.bench.core.document import nobody
from ramet.bench.core.samples import Effort, Row
from ramet.bench.core.shapes import DecisionShape
from ramet.bench.invariance import run as invariance
from ramet.bench.invariance.probes import DecisionProbe, Numbers, Probe, RandomLoad, TreeProbe
from ramet.bench.invariance.run import BitTally, InvarianceReport
from ramet.engine import Engine

LOAD = RandomLoad(7, 128, [], [])


def _trees(n: int) -> list[TreeProbe]:
    return [TreeProbe.draw(random.Random(i), 100, 40) for i in range(n)]


def test_a_load_is_drawn_again_from_its_number() -> None:
    probes = _trees(4)

    def stranger(rng: random.Random) -> Probe:
        return TreeProbe.draw(rng, 100, 40)

    assert RandomLoad.draw(3, 0, probes, stranger) == RandomLoad.draw(3, 0, probes, stranger)
    loads = [RandomLoad.draw(number, 0, probes, stranger) for number in range(40)]
    assert len({load.max_round_tokens for load in loads}) > 2
    assert {ask.number for load in loads for ask in load.then} == {-1, 0, 1, 2, 3}
    resumed = [ask.probe for load in loads for ask in load.first]
    assert any(isinstance(p, TreeProbe) and p.state not in [q.state for q in probes] for p in resumed)
    siblings = [ask.probe for load in loads for ask in load.then if ask.number < 0]
    assert any(isinstance(p, TreeProbe) and p.state in [q.state for q in probes] for p in siblings)
    assert any(list(ask.chosen) != sorted(ask.chosen) for load in loads for ask in load.then)


@pytest.mark.parametrize("probe", [*_trees(3), DecisionProbe.draw(random.Random(0), 30)])
def test_versions_begin_alike_and_siblings_share_the_state(probe: TreeProbe | DecisionProbe) -> None:
    rng = random.Random(0)
    lengths = set()
    for _ in range(20):
        version = probe.version(rng)
        n = min(len(version.state), len(probe.state))
        assert version.state[:n] == probe.state[:n]
        assert version.n_questions == probe.n_questions
        lengths.add(np.sign(len(version.state) - len(probe.state)))
    assert lengths >= {0, 1}
    assert probe.sibling(rng).state == probe.state
    assert probe.sibling(rng) != probe


@pytest.fixture(scope="module")
def engine() -> Engine:
    with Engine.load(tiny.llama(), dtype="float32") as engine:
        yield engine  # type: ignore[misc]


@pytest.mark.parametrize("probe", [*_trees(3), DecisionProbe.draw(random.Random(0), 20)])
def test_numbers_come_by_question_whatever_their_order(engine: Engine, probe: Probe) -> None:
    with ThreadPoolExecutor(2) as threads:
        order = list(reversed(range(probe.n_questions)))
        together = probe.ask(engine, order, "", threads)()
        alone = [probe.ask(engine, [i], f"alone {i}", threads)()[0] for i in order]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert len(together) == probe.n_questions


def test_a_tally_counts_bits_and_measures_them() -> None:
    tally, one = BitTally(), np.array([1.0, -0.0], np.float32)
    tally.take(LOAD, 0, 0, one, one.copy())
    assert (tally.answers, tally.differ, tally.largest) == (1, 0, 0.0)
    tally.take(LOAD, 0, 1, one, np.array([1.0, 0.0], np.float32))  # another bit, the same number
    assert (tally.differ, tally.largest) == (1, 0.0)
    tally.take(LOAD, 2, 1, one, np.array([1.5, 0.0], np.float32))
    assert (tally.answers, tally.differ, tally.largest) == (3, 2, 0.5)
    assert [(d.load, d.max_round_tokens, d.probe, d.question) for d in tally.listed] == [(7, 128, 0, 1), (7, 128, 2, 1)]


def _work(n_loads: int, *shapes: DecisionShape) -> invariance.Work:
    return invariance.InvarianceWork(n_loads, 30, shapes, Effort(repeats=2))


def test_a_run_compares_at_both_levels_and_times_both(engine: Engine, tmp_path: Path) -> None:
    found = invariance.run({"mode": engine, "plain": engine}, _work(2, DecisionShape(20, 2, 3)), nobody())
    for level in ("trees", "decisions"):
        assert found.tallies[level]["mode"].answers == found.tallies[level]["plain"].answers > 0
        assert found.tallies[level]["mode"].largest < 1e-3  # rounding: the engine here is in no mode
    (row,) = found.rows
    assert {name: len(ms) for name, ms in row.samples.items()} == {"mode": 2, "plain": 2}
    found.write(tmp_path / "f.json")
    read = json.loads((tmp_path / "f.json").read_text())
    assert (read["loads"], read["rows"][0]["shape"]) == (2, "20x2x3")
    assert read["faults"] == found.n_faults


def test_a_single_bit_is_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a request of more than one question, each question's first number moves by the least that it can."""
    asked = DecisionProbe.ask

    def moved(self: DecisionProbe, engine: Engine, chosen: Sequence[int], *rest: object) -> object:
        wait = asked(self, engine, chosen, *rest)  # type: ignore[arg-type]

        def numbers() -> list[Numbers]:
            found = [values.copy() for values in wait()]
            for values in found if len(chosen) > 1 else []:
                values[0] = np.nextafter(values[0], 2.0)
            return found

        return numbers

    monkeypatch.setattr(DecisionProbe, "ask", moved)
    monkeypatch.setattr(invariance, "_N_PROBES", 3)
    found = invariance.run({"mode": engine}, _work(3), nobody())
    tally = found.tallies["decisions"]["mode"]
    assert 0 < tally.differ <= tally.answers
    assert found.n_faults >= tally.differ


def _found(differ: int) -> InvarianceReport:
    tallies = {"trees": {"mode": BitTally(90, differ, 0.5), "plain": BitTally(90, 12, 0.25)}}
    row = Row("400x1x60", samples={"mode": [3.0], "plain": [2.0]})
    return InvarianceReport("m", {}, {}, 5, tallies, [row])


def test_tables_say_what_was_found() -> None:
    from rich.console import Console

    found = _found(0)
    found.tallies["trees"]["mode"].take(LOAD, 4, 2, np.zeros(1), np.ones(1))
    console = Console(width=140, record=True, file=StringIO())
    console.print(*found.tables())
    text = console.export_text()
    for words in ("5 loads", "91", "12", "0.25", "128", "1.50"):
        assert words in text


@pytest.mark.parametrize(("differ", "code"), [(0, 0), (3, 1)])
def test_the_command_fails_where_an_answer_differs(differ: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.cli import main

    seen = {}

    def run(engines: dict[str, Engine], work: invariance.Work, watch: object) -> InvarianceReport:
        seen.update({name: engine.settings.batch_invariant for name, engine in engines.items()}, work=work)
        return _found(differ)

    monkeypatch.setattr(invariance, "run", run)
    arguments = ["--model", str(tiny.llama()), "--loads", "5", "--shapes", "20x2x3", "--repeats", "3"]
    result = CliRunner().invoke(main, ["bench", "invariance", *arguments])
    assert result.exit_code == code, result.output
    assert (seen["mode"], seen["plain"]) == (True, False)
    assert (seen["work"].n_loads, seen["work"].shapes, seen["work"].effort.repeats) == (5, [DecisionShape(20, 2, 3)], 3)
