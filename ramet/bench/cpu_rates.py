"""What the processor does at most: how fast it reads memory, and how fast a layer's products run there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Self

import torch

from ramet.ops.linear import cpu as linear

FEW, MANY = 32, 1024  # rows
_SIZE = 4096
_BYTES = 1 << 29  # more than caches hold
_N_TIMED = 3


@dataclass(frozen=True, slots=True)
class CpuRates:
    """A second: bytes of memory read, by torch's sum over floats; bytes of weights, and floating-point operations, of
    products with FEW rows; operations with MANY. Weights are packed once, and none is used twice in a row."""

    read: float
    few_bytes: float
    few_flop: float
    many_flop: float

    @classmethod
    def measure(cls, dtype: torch.dtype, size: int = _SIZE, n_bytes: int = _BYTES) -> Self:
        """With weights [size, size], `n_bytes` of them. Takes a second or two."""
        read = n_bytes / _best_s(_sums(n_bytes))
        weight_bytes = size * size * dtype.itemsize
        weights = [_weight(size, dtype) for _ in range(max(2, n_bytes // weight_bytes))]
        few_s, many_s = (_best_s(_products(weights, rows, size, dtype)) for rows in (FEW, MANY))
        flop = 2 * size * size
        return cls(read, weight_bytes / few_s, FEW * flop / few_s, MANY * flop / many_s)


Timed = Callable[[], int]  # does its work and says how often


def _sums(n_bytes: int) -> Timed:
    numbers = torch.ones(n_bytes // 4)

    def run() -> int:
        numbers.sum()
        return 1

    return run


def _weight(size: int, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return linear.pack(torch.full((size, size), 0.01, dtype=dtype))


def _products(
    weights: list[Callable[[torch.Tensor], torch.Tensor]], n_rows: int, size: int, dtype: torch.dtype
) -> Timed:
    """With all weights where rows are few, with the next one where they are many."""
    x, turns = torch.full((n_rows, size), 0.5, dtype=dtype), cycle(weights)
    n = len(weights) if n_rows == FEW else 1

    def run() -> int:
        for _ in range(n):
            next(turns)(x)
        return n

    return run


def _best_s(run: Timed) -> float:
    """Seconds of one piece of work, at best."""
    times = []
    for _ in range(1 + _N_TIMED):
        start = time.perf_counter()
        n = run()
        times.append((time.perf_counter() - start) / n)
    return min(times[1:])
