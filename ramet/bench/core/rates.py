"""What a device does at most: its rate of products and of copies, measured on it, and what that makes of a pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Self

import torch

from ramet.bench.core.products import LinearProduct, Product
from ramet.bench.core.timing import on_device
from ramet.layers.decoder import Decoder
from ramet.ops import OpShape, Pack, choose

FEW, MANY = 32, 1024  # rows
_SIZES = {"cuda": 8192, "cpu": 2048}  # of a product
_COPY_BYTES, _READ_BYTES = 4 << 30, 1 << 29  # more than caches hold
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Floating-point operations a second of a large product of random numbers, and bytes a second, read and written
    ones added up, of a large copy."""

    flop_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """Of the device that a model is on, in its dtype."""
        if decoder.device.type == "cuda":
            return cls.measure(decoder.device, decoder.dtype)
        return cls.measure_cpu(decoder.dtype, decoder.ops.pack)

    @classmethod
    def measure(
        cls, device: torch.device, dtype: torch.dtype, size: int | None = None, copy_bytes: int = _COPY_BYTES
    ) -> Self:
        """A product of `size` rows, columns and terms, and a copy of `copy_bytes`. Well under a second on a GPU."""
        n = size or _SIZES[device.type]
        product_s, copy_s = _product_s(n, dtype, device), _copy_s(copy_bytes, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was needed here is nobody's
        return cls(2 * n**3 / product_s, 2 * copy_bytes / copy_s)

    @classmethod
    def measure_cpu(cls, dtype: torch.dtype, pack: Pack, size: int = _SIZES["cpu"], n_bytes: int = _READ_BYTES) -> Self:
        """The faster of torch's product and that of a weight which was packed; and bytes a second that are read, for a
        pass writes few. Each at its best, for a processor may have other work."""
        a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
        product, numbers = pack(b), torch.ones(n_bytes // 4)
        product_s = min(min(_times_s(lambda: product(a), _CPU)), min(_times_s(lambda: a @ b, _CPU)))
        return cls(2 * size**3 / product_s, n_bytes / min(_times_s(numbers.sum, _CPU)))

    def linear_ms(self, found: Sequence[Product], n_rows: int) -> float:
        """The least that the products of a pass over `n_rows` take: each row through every weight, also those that
        nobody reads, or every weight read once, whichever takes longer; of experts those that were chosen."""
        whole = (replace(x, n_rows=n_rows) if isinstance(x, LinearProduct) else x for x in found)
        return max(self.floors_ms(list(whole)))

    def floors_ms(self, found: Sequence[Product]) -> tuple[float, float]:
        """What the arithmetic of products takes, and what the bytes of their weights do."""
        n_bytes = sum(product.n_bytes for product in found)
        return self.flop_ms(sum(product.flop for product in found)), n_bytes / self.bytes_per_s * 1e3

    def flop_ms(self, flop: int) -> float:
        return flop / self.flop_per_s * 1e3


@dataclass(frozen=True, slots=True)
class CpuRates:
    """A second: bytes of memory read, by torch's sum over floats; bytes of weights, and floating-point operations, of
    products with FEW rows; operations with MANY. Weights are packed once, and none is used twice in a row."""

    read: float
    few_bytes: float
    few_flop: float
    many_flop: float

    @classmethod
    def measure(cls, dtype: torch.dtype, size: int = 4096, n_bytes: int = _READ_BYTES) -> Self:
        """With weights [size, size], `n_bytes` of them. Takes a second or two."""
        weight_bytes, flop = size * size * dtype.itemsize, 2 * size * size
        n = max(2, n_bytes // weight_bytes)
        pack = choose(torch.device("cpu"))(OpShape(dtype)).pack
        weights = [pack(torch.full((size, size), 0.01, dtype=dtype)) for _ in range(n)]
        few, many = (torch.full((n_rows, size), 0.5, dtype=dtype) for n_rows in (FEW, MANY))
        numbers, turns = torch.ones(n_bytes // 4), cycle(weights)
        read_s, all_few_s, many_s = (
            min(_times_s(call, _CPU, n_warm=1, n_timed=3))
            for call in (numbers.sum, lambda: [weight(few) for weight in weights], lambda: next(turns)(many))
        )
        few_s = all_few_s / n
        return cls(n_bytes / read_s, weight_bytes / few_s, FEW * flop / few_s, MANY * flop / many_s)


def _product_s(n: int, dtype: torch.dtype, device: torch.device) -> float:
    a, b = (torch.randn(n, n, dtype=dtype, device=device) for _ in range(2))
    return statistics.median(_times_s(lambda: a @ b, device))


def _copy_s(n_bytes: int, device: torch.device) -> float:
    source = torch.ones(n_bytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return statistics.median(_times_s(lambda: target.copy_(source), device))


def _times_s(call: Callable[[], object], device: torch.device, n_warm: int = 3, n_timed: int = 10) -> list[float]:
    run = on_device(call, device)
    return [run()[0] / 1e3 for _ in range(n_warm + n_timed)][n_warm:]
