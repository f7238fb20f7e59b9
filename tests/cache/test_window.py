"""D8: a sliding window of W rows counts the query's own, by every way through the engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import tiny
from fixtures.tiny_engine import tiny_engine

from ramet.engine import Engine
from ramet.tree import FloatArray, IntArray, Read, Segment, Tree

WINDOW, LENGTH, FORK = 8, 40, 36  # the rows that matter lie on both sides of the fork, and of a page's end
FAMILIES = ("gemma3", "qwen3")  # heads of 16 go through the compiled kernel, of 24 through plain torch
SETTINGS: dict[str, dict[str, Any]] = {
    "whole": {},
    "in rounds of 5": {"max_round_tokens": 5},
    "row by row": {"max_round_tokens": 1},
    "plain torch": {"ops": {"attention": "reference"}},
}


@functools.cache
def one_layer(family: str) -> Path:
    """A checkpoint of a sliding layer and nothing else."""
    config: dict[str, Any] = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": WINDOW}
    if family == "qwen3":
        return tiny.qwen3.__wrapped__(**config, use_sliding_window=True)
    return tiny.gemma3.__wrapped__(**config)


def straight(engine: Engine, ids: IntArray) -> FloatArray:
    """In one segment, nothing kept before."""
    return logprobs(engine, Tree.of([Segment(ids, reads=[_whole(engine)])]), 0)


def forked(engine: Engine, ids: IntArray) -> FloatArray:
    """The last rows as one of two branches."""
    tree = Tree.of([
        Segment(ids[:FORK]), Segment(ids[:9], 0, reads=[Read([1])]), Segment(ids[FORK:], 0, reads=[_whole(engine)]),
    ])  # fmt: skip
    return logprobs(engine, tree, 1)


def resumed(engine: Engine, ids: IntArray) -> FloatArray:
    """The first rows are in pages."""
    engine.submit(Tree.of([Segment(ids[:FORK])]), n_keep=FORK).result()
    before = engine.stats()["prefix_hit_tokens_total"]
    found = logprobs(engine, Tree.of([Segment(ids, reads=[_whole(engine)])]), 0, n_keep=LENGTH)
    assert engine.stats()["prefix_hit_tokens_total"] - before >= FORK // 16 * 16
    return found


def logprobs(engine: Engine, tree: Tree, read: int, n_keep: int = 0) -> FloatArray:
    return engine.submit(tree, n_keep=n_keep).result().logprobs(read)


def _whole(engine: Engine) -> Read:
    return Read(np.arange(engine.shape.vocab_size))


@torch.no_grad()
def theirs(source: Path, ids: IntArray) -> FloatArray:
    model = tiny.model(source)
    assert model.config._attn_implementation == "eager"
    return model(torch.tensor(ids[None]).long()).logits[0, -1].log_softmax(-1).numpy()  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=[(f, s) for f in FAMILIES for s in SETTINGS], ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Path]]:
    family, settings = request.param
    source = one_layer(family)
    with tiny_engine(family, source, **SETTINGS[settings]) as engine:
        yield engine, source


@pytest.mark.parametrize("ask", [straight, forked, resumed])
def test_the_window_counts_the_querys_own_row(
    loaded: tuple[Engine, Path], ask: Callable[[Engine, IntArray], FloatArray]
) -> None:
    engine, source = loaded
    ids = np.random.default_rng(0).integers(0, 1000, LENGTH).astype(np.int32)
    plain = ask(engine, ids)
    for distance, seen in ((WINDOW - 1, True), (WINDOW, False), (WINDOW + 1, False)):
        changed = ids.copy()
        changed[LENGTH - 1 - distance] += 1
        found = ask(engine, changed)
        np.testing.assert_allclose(np.exp(found), np.exp(theirs(source, changed)), rtol=0, atol=1e-5)
        assert (np.abs(found - plain).max() > 1e-3) == seen
