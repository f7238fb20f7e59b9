"""What a device does at most: its rate of products and of copies, measured on it, and what that makes of a pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch

from ramet.bench.core.products import Product
from ramet.bench.core.timing import on_device
from ramet.layers.decoder import Decoder
from ramet.ops import Pack

_SIZES = {"cuda": 8192, "cpu": 2048}  # of a product
_BYTES = {"cuda": 4 << 30, "cpu": 1 << 29}  # more than caches hold
_N_WARM, _N_TIMED = 3, 10


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Floating-point operations a second of a large product of random numbers; bytes a second, read and written ones
    added up, of a large copy on a GPU, and of a large sum on a CPU, for a pass writes few."""

    flop_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """Of the device that a model is on, in its dtype."""
        return cls.measure(decoder.device, decoder.dtype, decoder.ops.pack)

    @classmethod
    def measure(
        cls, device: torch.device, dtype: torch.dtype, pack: Pack, size: int | None = None, n_bytes: int | None = None
    ) -> Self:
        """By a product of `size` rows, columns and terms, and `n_bytes` of memory. Well under a second on a GPU."""
        size = size or _SIZES[device.type]
        n_bytes = n_bytes or _BYTES[device.type]
        found = cls(2 * size**3 / _product_s(size, dtype, device, pack), _bytes_per_s(n_bytes, device))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was needed here is nobody's
        return found

    def linear_ms(self, found: Sequence[Product], n_rows: int) -> float:
        """The least that the products of a pass over `n_rows` take: each row through every weight, also those that
        nobody reads, or every weight read once, whichever takes longer; of experts those that were chosen."""
        whole = (replace(x, n_rows=n_rows) if x.chosen is None else x for x in found)
        return max(self.floors_ms(list(whole)))

    def floors_ms(self, found: Sequence[Product]) -> tuple[float, float]:
        """What the arithmetic of products takes, and what the bytes of their weights do."""
        n_bytes = sum(product.n_bytes for product in found)
        return self.flop_ms(sum(product.flop for product in found)), n_bytes / self.bytes_per_s * 1e3

    def flop_ms(self, flop: int) -> float:
        return flop / self.flop_per_s * 1e3


def _product_s(size: int, dtype: torch.dtype, device: torch.device, pack: Pack) -> float:
    """On a CPU of the faster of torch's product and that of a weight which was packed, each at its best, for a
    processor may have other work."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    times = _times_s(partial(torch.matmul, a, b), device)
    if device.type == "cuda":
        return statistics.median(times)
    return min(times + _times_s(partial(pack(b), a), device))


def _bytes_per_s(n_bytes: int, device: torch.device) -> float:
    numbers = torch.ones(n_bytes // 4, device=device)
    if device.type == "cpu":
        return n_bytes / min(_times_s(numbers.sum, device))
    return 2 * n_bytes / statistics.median(_times_s(partial(torch.empty_like(numbers).copy_, numbers), device))


def _times_s(call: Callable[[], object], device: torch.device) -> list[float]:
    run = on_device(call, device)
    return [run()[0] / 1e3 for _ in range(_N_WARM + _N_TIMED)][_N_WARM:]
