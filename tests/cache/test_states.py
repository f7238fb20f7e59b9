"""States that grow: a later request resumes where an earlier one left off, and its answers are those of a fresh one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny_engine
from oracles.answers import assert_close

from ramet.decision import Decision
from ramet.engine import Engine
from ramet.engine.settings import PAGE_SIZE
from ramet.request import DecisionRequest

MODELS = ["gemma3", "gemma4", "llama", "qwen3_5", "qwen3_5_moe"]
QUESTIONS = {
    "done": {"type": "noul", "instructions": "Is the task done?"},
    "next": {"type": "choice", "instructions": "What comes next?", "criteria": {"read": None, "write": None}},
    "risk": {"type": "score", "instructions": "How risky?", "criteria": ["none", "some", "much"]},
    "ok": {"type": "noul", "instructions": "Did the last step work?"},
}
WORDS = ["agent", "a", "file", "and", "reads", "lines", "then", "writes", "tests", "fail", "one", "by", "no", "yes"]


def trajectory(seed: int, n_steps: int) -> list[list[dict[str, str]]]:
    """The history before each step: messages, a few more each time."""
    rng = random.Random(seed)
    say = lambda n: " ".join(rng.choices(WORDS, k=n))  # noqa: E731
    history = [{"role": "user", "content": say(30)}]
    steps = []
    for _ in range(n_steps):
        answer = {"role": "tool", "content": say(rng.randrange(4, 30))}
        history = [*history, {"role": "assistant", "content": say(8)}, answer]
        steps.append(history)
    return steps


def decide(engine: Engine, state: Any, **options: Any) -> Decision:
    return engine.decide(state=state, questions=QUESTIONS, method="letters", **options)


@pytest.mark.parametrize("model_type", MODELS)
def test_a_trajectory_resumes_at_each_step(model_type: str) -> None:
    with tiny_engine.tiny_engine(model_type, max_round_tokens=300) as engine:
        for seed in range(2):
            mark = before = 0
            for step, state in enumerate(trajectory(seed, 6)):
                resumed = decide(engine, state)
                fresh = decide(engine, state, cache_salt=f"{seed}.{step}")
                assert fresh.usage.x_cached_tokens == 0
                if step:  # all of the step before but its closing brackets, its last word and part of a page
                    assert before - 40 < mark - PAGE_SIZE < resumed.usage.x_cached_tokens <= before
                assert_close(resumed.answers, fresh.answers)
                plan = engine.decider.plan(_request(state))
                mark, before = plan.mark, plan.trunk
        stats = engine.stats()
        assert stats["pages_free"] + stats["pages_indexed"] == stats["pages"]


def _request(state: Any) -> DecisionRequest:
    return DecisionRequest.parse({"state": state, "questions": QUESTIONS, "x_method": "letters"})


def test_an_edit_in_the_middle_resumes_at_the_checkpoint_before_it() -> None:
    with tiny_engine.tiny_engine("qwen3_5", checkpoint_spacing=64) as engine:
        words = WORDS * 30
        decide(engine, " ".join(words))
        words[len(words) // 2] = "edited"
        found = decide(engine, " ".join(words))
        n_trunk = found.usage.input_tokens
        assert found.usage.x_cached_tokens % 64 == 0
        assert 0.3 * n_trunk < found.usage.x_cached_tokens < 0.6 * n_trunk
        assert_close(found.answers, decide(engine, " ".join(words), cache_salt="x").answers)


def test_a_trajectory_stores_its_tokens_once() -> None:
    with tiny_engine.tiny_engine("qwen3") as engine:
        stored, n_tokens = [], []
        for state in trajectory(0, 8):
            decide(engine, state)
            stored.append(engine.stats()["pages_indexed"])
            n_tokens.append(engine.decider.plan(_request(state)).trunk)
        for pages, n in zip(stored, n_tokens, strict=True):
            # besides, a page a step that the next step parts from
            assert n // PAGE_SIZE <= pages <= n // PAGE_SIZE + 8 + 1


def test_tenants_share_nothing() -> None:
    with tiny_engine.tiny_engine("qwen3_5") as engine:
        state = trajectory(0, 3)[-1]
        for salt in ("a", "b", "\ud800", "a" * 1000):
            assert decide(engine, state, cache_salt=salt).usage.x_cached_tokens == 0
            assert decide(engine, state, cache_salt=salt).usage.x_cached_tokens > 0


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_5"])
@pytest.mark.parametrize("below", ["nothing", "memory", "disk"])
def test_eviction_changes_no_answer(model_type: str, below: str, tmp_path: Path) -> None:
    """A budget that holds hardly one trajectory, and three that take turns."""
    levels: dict[str, dict[str, Any]] = {"memory": {"memory_cache_bytes": 1 << 26}, "disk": {"disk_cache": tmp_path}}
    settings = levels.get(below, {})
    steps = [trajectory(seed, 5) for seed in range(3)]
    with tiny_engine.tiny_engine(model_type, max_round_tokens=300, cache_bytes=1 << 24) as engine:
        tight = int(90 * (1 << 24) / engine.stats()["pages"])  # a trajectory takes up to 70 pages
        kept = [[decide(engine, state, cache_salt=str(state)) for state in own] for own in steps]
    with tiny_engine.tiny_engine(model_type, max_round_tokens=300, cache_bytes=tight, **settings) as engine:
        for j in range(5):
            for i in range(3):
                assert_close(decide(engine, steps[i][j]).answers, kept[i][j].answers)
        stats = engine.stats()
        assert stats["pages_evicted_total"] + stats["checkpoints_evicted_total"] > 0
        if below != "nothing":
            assert stats["prefix_hit_tokens_total"] > stats["prefix_missed_tokens_total"] / 2


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_5"])
def test_a_restarted_engine_finds_its_states_on_disk(
    model_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = trajectory(1, 4)[-1]
    with tiny_engine.tiny_engine(model_type, disk_cache=tmp_path) as engine:
        first = decide(engine, state)
    with tiny_engine.tiny_engine(model_type, disk_cache=tmp_path) as engine:
        second = decide(engine, state)
        assert second.usage.x_cached_tokens > first.usage.input_tokens / 3
        assert_close(second.answers, first.answers)
    with tiny_engine.tiny_engine(model_type, disk_cache=tmp_path, dtype="bfloat16") as other:
        assert decide(other, state).usage.x_cached_tokens == 0
    for file in [f for f in tmp_path.rglob("*") if f.is_file() and f.stat().st_size > 1000]:
        data = bytearray(file.read_bytes())
        data[-5] ^= 64
        file.write_bytes(data)
    with tiny_engine.tiny_engine(model_type, disk_cache=tmp_path) as engine:
        third = decide(engine, state)
        assert "damaged" in caplog.text
        assert third.usage.x_cached_tokens == 0
        assert_close(third.answers, first.answers)


def test_another_mode_does_not_take_what_lies_on_disk(tmp_path: Path) -> None:
    """A batch-invariant engine's bits are its own: what another one left is not theirs."""
    state = trajectory(1, 4)[-1]
    cached = []
    for invariant in (False, True, True):
        settings: dict[str, Any] = {"checkpoint_spacing": 64, "batch_invariant": invariant}
        with tiny_engine.tiny_engine("qwen3_5", disk_cache=tmp_path, **settings) as engine:
            cached.append(decide(engine, state).usage.x_cached_tokens > 0)
    assert cached == [False, False, True]


def test_a_state_that_is_all_tail_keeps_nothing() -> None:
    with tiny_engine.tiny_engine("qwen3_5") as engine:
        assert [engine.cache.kept(40, mark) for mark in (-50, 0, 15, 33)] == [(0, ())] * 3 + [(32, (32,))]
