"""Reads in one pass and in two steps: rounds counted, answers compared; when a read falls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from oracles import diffusion_gemma as oracle

from ramet.engine.engine import Engine
from ramet.errors import InvalidRequest, RequestTooLong
from ramet.tree import WHOLE, FloatArray, Read, Segment, Tree

QUESTIONS: dict[str, Any] = {
    "who": {"type": "choice", "criteria": {"a user": "writes", "the system": None, "me": None}},
    "fine": {"type": "noul", "instructions": "Is it fine?"},
}
Load = Callable[..., Engine]


@pytest.fixture
def load() -> Iterator[Load]:
    engines: list[Engine] = []

    def one(**settings: Any) -> Engine:
        given = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 22} | settings
        engines.append(Engine.load(oracle.saved("plain"), **given))
        return engines[-1]

    yield one
    for engine in engines:
        engine.close()


def read(engine: Engine, n_prompt: int, n_canvas: int = 7, seed: int = 0) -> FloatArray:
    """Logits of a read, of ids that nobody asked before."""
    rng = np.random.default_rng([seed, n_prompt, n_canvas])
    prompt, canvas = (rng.integers(0, engine.shape.vocab_size, n).tolist() for n in (n_prompt, n_canvas))
    reads = [Read(range(5), row) for row in range(n_canvas)]
    return engine.submit(Tree.of([Segment(prompt), Segment(canvas, 0, WHOLE, reads)]), n_keep=n_prompt).result().logits


def counted(engine: Engine, ask: Callable[[], Any]) -> tuple[tuple[float, ...], Any]:
    """Rounds, reads in two steps, and those of them that fell back, while something is asked; and the answer."""
    names = ("rounds_total", "two_step_reads_total", "read_fallbacks_total")
    before = engine.stats()
    answer = ask()
    after = engine.stats()
    return tuple(after[name] - before[name] for name in names), answer


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("n_prompt", [1, 16, 40, 45])
def test_off_and_on_agree(load: Load, n_prompt: int, invariant: bool) -> None:
    one, two = (load(single_pass_reads=single, batch_invariant=invariant) for single in (True, False))
    (first, *found), (second, *others) = (counted(engine, partial(read, engine, n_prompt)) for engine in (one, two))
    assert (first, second) == ((1, 0, 0), (2, 1, 0))
    found += others
    np.testing.assert_allclose(*found, rtol=0, atol=1e-4)
    assert not invariant or np.array_equal(*found)


def test_a_question_takes_one_round_or_two(load: Load) -> None:
    one, two = load(), load(single_pass_reads=False)
    asked = {name: QUESTIONS[name] for name in ("who",)}
    found = [counted(engine, partial(engine.decide, state="All is well.", questions=asked)) for engine in (one, two)]
    assert [counts for counts, _ in found] == [(1, 0, 0), (2, 1, 0)]
    assert [(a.usage.x_engine_steps, a.usage.x_fell_back) for _, a in found] == [(1, False), (2, False)]
    first, second = (answer["who"].probabilities for _, answer in found)
    assert second == pytest.approx(first, abs=1e-5)
    many = [engine.decide(state="All is well.", questions=QUESTIONS) for engine in (one, two)]
    assert many[1]["fine"].noul == pytest.approx(many[0]["fine"].noul, abs=1e-5)  # type: ignore[union-attr]


def test_falls_back_where_prompt_and_canvas_exceed_the_budget(load: Load) -> None:
    engine, alone = load(max_round_tokens=48), load()
    for n_prompt, counts in ((41, (1, 0, 0)), (42, (2, 1, 1)), (48, (2, 1, 1)), (89, (2, 0, 0)), (90, (3, 1, 1))):
        told, found = counted(engine, partial(read, engine, n_prompt))
        assert told == counts, n_prompt
        np.testing.assert_allclose(found, read(alone, n_prompt), rtol=0, atol=1e-4)


@pytest.mark.parametrize("single", [True, False])
def test_prompt_and_canvas_have_the_length_together(load: Load, single: bool) -> None:
    engine = load(max_model_len=40, single_pass_reads=single)
    assert counted(engine, partial(read, engine, 33))[0][0] == (1 if single else 2)
    with pytest.raises(RequestTooLong, match="41 tokens; the model takes 40"):
        read(engine, 34)


def test_many_at_once_in_two_steps(load: Load) -> None:
    engine, alone = load(single_pass_reads=False, max_round_tokens=128, max_round_requests=3), load()
    rng = np.random.default_rng(1)
    trees = []
    for n in rng.integers(1, 90, 12).tolist():
        prompt, canvas = (rng.integers(0, engine.shape.vocab_size, k).tolist() for k in (n, 7))
        trees.append(Tree.of([Segment(prompt), Segment(canvas, 0, WHOLE, [Read(range(5), 3)])]))
    before = engine.stats()
    found = [future.result().logits for future in [engine.submit(tree) for tree in trees]]
    assert engine.stats()["two_step_reads_total"] - before["two_step_reads_total"] == 12
    for tree, logits in zip(trees, found, strict=True):
        np.testing.assert_allclose(logits, alone.submit(tree).result().logits, rtol=0, atol=1e-4)
    assert engine.stats()["pages_free"] + engine.stats()["pages_indexed"] == engine.stats()["pages"]


@pytest.mark.parametrize("name", ["max_model_len", "max_round_requests", "canvas_length", "max_denoising_steps"])
def test_settings_below_one_are_refused(load: Load, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(**{name: 0})
    assert caught.value.field == name
