"""Batch-invariant mode: every answer has the bits of its question asked alone, whatever shares its round, however its
prompt was cut, resumed or fresh."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fixtures.cpu_variants import experts_refused
from fixtures.tiny_engine import MAKERS, MAX_POSITIONS, tiny_engine

from ramet.engine import Engine
from ramet.errors import RametError
from ramet.tree import IntArray, Read, Reads, Segment, Tree

DTYPES = ["float32", "bfloat16"]


@contextlib.contextmanager
def engines(model_type: str, dtype: str) -> Iterator[tuple[Engine, list[Engine]]]:
    """One that is asked questions alone, and others under load: with large rounds, small ones, and a cache that
    hardly holds a state."""
    loads = ({"max_round_tokens": 2048}, {"max_round_tokens": 320}, {"cache_bytes": 1 << 22, "max_round_tokens": 320})
    sizes = {"head_dim": 32} if model_type == "qwen3" else {}
    source = MAKERS[model_type](max_position_embeddings=MAX_POSITIONS, **sizes)
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(
                tiny_engine(model_type, source, dtype=dtype, batch_invariant=True, checkpoint_spacing=128, **s)
            )
            for s in ({}, *loads)
        ]
        yield made[0], made[1:]


class Questions:
    """States that begin like one another, and questions about them."""

    def __init__(self, rng: np.random.Generator, vocab_size: int) -> None:
        self.rng, self.vocab_size = rng, vocab_size
        self.states = [self.draw(n) for n in (330, 331, 90)]
        self.states += [np.concatenate([self.states[0][:n], self.draw(m)]) for n, m in ((330, 70), (200, 150), (64, 1))]
        self.questions = [self.question() for _ in range(8)]

    def draw(self, n: int) -> IntArray:
        return self.rng.integers(0, self.vocab_size, n).astype(np.int32)

    def question(self) -> Segment:
        n = int(self.rng.integers(1, 60))
        columns = [Read(self.draw(int(self.rng.integers(1, 6))), int(self.rng.integers(n))) for _ in range(2)]
        return Segment(self.draw(n), 0, reads=columns)

    def tree(self, state: int, questions: list[int]) -> Tree:
        return Tree.of([Segment(self.states[state]), *(self.questions[q] for q in questions)])

    def request(self) -> tuple[int, list[int]]:
        some = self.rng.permutation(len(self.questions))[: int(self.rng.integers(1, 6))]
        return int(self.rng.integers(len(self.states))), some.tolist()


def bits(reads: Reads, i: int) -> bytes:
    return reads.columns(i).tobytes() + reads.logsumexp[i].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model_type", sorted(MAKERS))
def test_the_bits_of_the_question_asked_alone(model_type: str, dtype: str) -> None:
    if experts_refused(lambda: tiny_engine(model_type, dtype=dtype, batch_invariant=True), model_type, dtype):
        return
    with engines(model_type, dtype) as (lone, loaded):
        asked = Questions(np.random.default_rng(2), lone.shape.vocab_size)
        expected = {}
        for state in range(len(asked.states)):
            for q in range(len(asked.questions)):
                reads = lone.submit(asked.tree(state, [q])).result()
                expected[state, q] = [bits(reads, i) for i in range(2)]
        for engine in loaded:
            for _ in range(8):
                requests = [asked.request() for _ in range(int(asked.rng.integers(1, 6)))]
                trees = [asked.tree(*request) for request in requests]
                futures = [engine.submit(tree, n_keep=int(tree.lengths[0])) for tree in trees]
                for (state, questions), future in zip(requests, futures, strict=True):
                    reads = future.result()
                    found = [bits(reads, i) for i in range(2 * len(questions))]
                    assert found == [b for q in questions for b in expected[state, q]]
            stats = engine.stats()
            assert stats["prefix_hit_tokens_total"] > 0


@pytest.mark.parametrize(
    ("model_type", "settings", "named"),
    [
        ("qwen3", {}, "heads of 24 cannot"),
        ("llama", {"ops": {"attention": "reference"}}, "attention would be plain torch"),
        ("llama", {"ops": {"norm": "reference", "linear": "reference"}}, "norm would be plain torch"),
    ],
)
def test_what_cannot_keep_the_promise_is_refused(model_type: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(RametError, match=named):
        tiny_engine(model_type, batch_invariant=True, **settings)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"linear_conv_kernel_dim": 5}, "a convolution of width 5 over 128 channels cannot"),
        ({"linear_key_head_dim": 24}, "a delta rule with 2 of 24 as key heads and 4 of 16 as value heads cannot"),
        ({"linear_num_key_heads": 1, "linear_num_value_heads": 32}, "a delta rule with 1 of 16 as key heads and 32"),
    ],
)
def test_recurrent_layers_that_cannot(config: dict[str, int], named: str) -> None:
    """They are served otherwise."""
    source = MAKERS["qwen3_5"](**config)
    tiny_engine("qwen3_5", source).close()
    with pytest.raises(RametError, match=named):
        tiny_engine("qwen3_5", source, batch_invariant=True)
