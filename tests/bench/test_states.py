"""The bench of growing states: histories that grow as they say, and a run whose every figure can be checked."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fixtures import tiny

from ramet.bench.core.document import nobody
from ramet.bench.states import run as states
from ramet.bench.states.history import Growth, Trajectory, questions
from ramet.bench.states.report import Squeezed, StatesReport, StateStep, TimedRequest
from ramet.engine import Engine
from ramet.errors import RametError
from ramet.values import as_json

WORK = states.StatesWork(n_trajectories=2, n_steps=3, n_questions=2, growth=Growth(8), fresh_every=1)


def test_a_history_grows_and_only_its_end_changes() -> None:
    trajectory = Trajectory.draw(random.Random(0), 4, Growth(8))
    texts = [as_json(trajectory.state(step)) for step in range(4)]
    for text, next_text in pairwise(texts):
        assert next_text.startswith(text.removesuffix('"}]'))
        assert len(next_text) > len(text)
    assert all(words in texts[-1] for pair in trajectory.steps[:-1] for words in pair)


def test_a_tail_is_replaced() -> None:
    trajectory = Trajectory.draw(random.Random(0), 3, Growth(8, n_tail=5))
    tails = [trajectory.state(step)[-1] for step in range(3)]
    assert [tail["role"] for tail in tails] == ["status"] * 3
    assert [len(tail["content"].split()) for tail in tails] == [5, 5, 5]
    assert tails[0]["content"] not in as_json(trajectory.state(1))


def test_trajectories_have_nothing_in_common_and_are_drawn_again_alike() -> None:
    assert WORK.trajectory(0) == WORK.trajectory(0)
    assert WORK.trajectory(0).opening.split()[0] != WORK.trajectory(1).opening.split()[0]
    assert [q["type"] for q in questions(4).values()] == ["noul", "choice", "score", "noul"]


def test_every_step_but_the_first_has_its_turn_to_be_compared() -> None:
    work = states.StatesWork(fresh_every=4)
    turns = [[step for step in range(work.n_steps) if work.is_compared(number, step)] for number in range(4)]
    assert sorted(step for steps in turns for step in steps) == list(range(1, work.n_steps))


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_a_run(kind: str, tmp_path: Path) -> None:
    with Engine.load(getattr(tiny, kind)(), dtype="float32", checkpoint_spacing=32) as engine:
        found = states.run(engine, WORK, nobody())
        states.check(found, torch.float32, same_bits=False)
    assert [(s.trajectory, s.step) for s in found.steps] == [(t, i) for t in range(2) for i in range(3)]
    for trajectory in (found.steps[:3], found.steps[3:]):
        assert trajectory[0].resumed.n_cached <= 16  # nothing to resume but the template's beginning
        for before, s in pairwise(trajectory):
            assert s.n_history > before.n_history
            assert before.n_history - 32 <= s.resumed.n_cached <= before.n_history
            assert s.fresh is not None
            assert (s.fresh.n_cached, s.fresh.n_tokens) == (0, s.resumed.n_tokens)
    last = found.steps[-1]
    assert last.n_seen == found.steps[2].n_history + last.n_history < last.n_asked
    assert last.bytes >= (last.n_seen - 2 * 32) * found.row_bytes
    assert found.difference is not None
    assert found.squeezed is not None
    assert (found.squeezed.n_steps, found.state_bytes > 0) == (6, kind == "qwen3_5")
    found.write(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["steps"][-1]["n_seen"] == last.n_seen


def _stepped(step: int, ms: float, n_bytes: int, fresh_ms: float | None = None) -> StateStep:
    resumed = TimedRequest(ms, ms / 2, 100, 60)
    fresh = None if fresh_ms is None else TimedRequest(fresh_ms, fresh_ms / 2, 100, 0)
    return StateStep(0, step, 10 * step, resumed, 10 * step, 0, n_bytes, fresh, None if fresh is None else 0.25 * step)


def _steps(*steps: StateStep) -> StatesReport:
    return StatesReport("m", {}, {}, row_bytes=4, state_bytes=0, capacity=1 << 20, steps=list(steps))


def test_buckets_are_medians_by_history() -> None:
    found = _steps(_stepped(2, 7.0, 80, 20.0), _stepped(1, 3.0, 40), _stepped(1, 5.0, 40), _stepped(2, 9.0, 80))
    first, second = found.buckets()
    assert (first["n_history"], first["resumed_ms"], first["fresh_ms"]) == (10, 4.0, None)
    assert (second["n_history"], second["resumed_ms"], second["fresh_ms"], second["fresh_pass_ms"]) == (
        20,
        8.0,
        20.0,
        10.0,
    )
    assert second["n_computed"] == 40
    assert found.difference == 0.5


def test_bytes_are_held_against_a_line() -> None:
    line = _steps(_stepped(1, 1.0, 40), _stepped(2, 1.0, 80), _stepped(4, 1.0, 160))
    assert line.bytes_per_token == pytest.approx(4.0)
    assert line.nonlinearity == pytest.approx(0.0)
    bent = _steps(_stepped(1, 1.0, 10), _stepped(2, 1.0, 40), _stepped(4, 1.0, 160))
    assert bent.nonlinearity > 0.1


@pytest.mark.parametrize(
    ("difference", "squeezed", "dtype", "same_bits", "fails"),
    [
        (5e-5, 5e-5, torch.float32, False, False),
        (5e-4, 0.0, torch.float32, False, True),
        (0.0, 5e-4, torch.float32, False, True),
        (0.02, 0.02, torch.bfloat16, False, False),
        (0.0, 0.0, torch.bfloat16, True, False),
        (0.0, 1e-9, torch.bfloat16, True, True),
        (float("nan"), 0.0, torch.float32, False, True),
    ],
)
def test_answers_that_moved_fail(
    difference: float, squeezed: float, dtype: torch.dtype, same_bits: bool, fails: bool
) -> None:
    found = _steps(replace(_stepped(1, 1.0, 40, 2.0), difference=difference))
    found.squeezed = Squeezed(1, difference=squeezed)
    if fails:
        with pytest.raises(RametError, match="answers"):
            states.check(found, dtype, same_bits=same_bits)
    else:
        states.check(found, dtype, same_bits=same_bits)


def test_tables_say_what_was_found() -> None:
    from rich.console import Console

    found = _steps(_stepped(1, 3.0, 40), _stepped(2, 7.0, 80, 21.0))
    found.squeezed = Squeezed(1 << 20, 2, evicted_pages=17, cached=0.25, difference=0.125)
    console = Console(width=140, record=True, file=StringIO())
    console.print(*found.tables())
    text = console.export_text()
    for words in ("7.00", "21.0", "3.0", "evicted_pages 17", "cached 0.25", "difference 0.125", "difference       0.5"):
        assert words in text


def test_plot_is_the_same_for_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ramet.bench.states.plot import draw

    found = _steps(_stepped(1, 3.0, 40), _stepped(2, 7.0, 80, 21.0))
    for name in ("a.svg", "b.svg"):
        draw(found, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    found.steps.append(_stepped(3, 8.0, 120))
    draw(found, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()


def test_command(tmp_path: Path) -> None:
    from ramet.cli import main

    sizes = ["--trajectories", "2", "--steps", "2", "--questions", "1", "--words", "8", "--fresh-every", "1"]
    arguments: list[Any] = ["--model", tiny.llama(), "--dtype", "float32", *sizes, "--json", tmp_path / "f.json"]
    result = CliRunner().invoke(main, ["bench", "states", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    assert "a step of a growing state" in result.output
    assert len(json.loads((tmp_path / "f.json").read_text())["steps"]) == 4
