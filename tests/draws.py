"""How rows are drawn, for tests."""

from __future__ import annotations

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
