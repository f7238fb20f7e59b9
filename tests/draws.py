"""How rows are drawn, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ramet.ops.head.reference import Sampled
from ramet.tree import Sampling

JUST_BELOW_1 = np.float32(1 - 2.0**-24)


def sampling(n: int, temperature: Any = 0.0, uniform: Any = 0.5, top_k: Any = 0, top_p: Any = 1.0) -> Sampling:
    """Of n rows, each value theirs or one for all."""
    values = [np.broadcast_to(np.float32(x), n).copy() for x in (temperature, uniform, top_p)]
    return Sampling(*values, np.broadcast_to(np.int32(top_k), n).copy())


def random_sampling(rng: np.random.Generator, n: int) -> Sampling:
    return sampling(
        n, rng.choice([0, 0.3, 1, 2], n), rng.random(n), rng.choice([0, 0, 3, 50], n), rng.choice([1, 1, 0.3, 0.9], n)
    )


def same(a: Sampled, b: Sampled, rows: Any = slice(None)) -> bool:
    """Whether a has the bits of b's rows."""
    return all(torch.equal(getattr(a, f), getattr(b, f)[rows]) for f in ("tokens", "logprobs", "entropy"))


def assert_drawn(found: Sampled, tokens: torch.Tensor, logprobs: torch.Tensor, entropy: torch.Tensor) -> None:
    """What was drawn, beside the same in float64."""
    assert torch.equal(found.tokens, tokens)
    for a, b in ((found.logprobs, logprobs), (found.entropy, entropy)):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=2e-5)


def assert_ends(drawn: Callable[[torch.Tensor, Sampling], Sampled], vocab_size: int) -> None:
    """By uniforms at their ends the first id and the last, of those that have anything of the whole."""
    logits = torch.full((4, vocab_size), -3.0)
    found = drawn(logits, sampling(4, [1, 1, 0.5, 3], [0, JUST_BELOW_1, JUST_BELOW_1, 0]))
    assert found.tokens.tolist() == [0, vocab_size - 1, vocab_size - 1, 0]
    logits[:, 0] = logits[:, -1] = -500.0  # nothing of the whole
    if vocab_size > 2:
        found = drawn(logits, sampling(4, 1.0, [0, JUST_BELOW_1, JUST_BELOW_1, 0]))
        assert found.tokens.tolist() == [1, vocab_size - 2, vocab_size - 2, 1]


def assert_one_entry(drawn: Callable[[torch.Tensor, Sampling], Sampled]) -> None:
    """Of a vocabulary of one, however it is drawn."""
    found = drawn(torch.randn(3, 1), sampling(3, [0, 1, 1], JUST_BELOW_1, [0, 0, 4], [1, 1, 0.1]))
    assert (found.tokens.tolist(), found.logprobs.tolist(), found.entropy.tolist()) == ([0] * 3, [0.0] * 3, [0.0] * 3)
