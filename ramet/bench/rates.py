"""What a device does at most: its rate of products and of copies, measured on it, and what that makes of a pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ramet.bench.products import LinearProduct, Product
from ramet.bench.timing import on_device
from ramet.ops import Pack

_SIZES = {"cuda": 8192, "cpu": 2048}  # of a product
_COPY_BYTES, _READ_BYTES = 4 << 30, 1 << 29
_N_WARM, _N_TIMED = 3, 10


@dataclass(frozen=True, slots=True)
class Rates:
    """Floating-point operations a second of a large product of random numbers, and bytes a second, read and written
    ones added up, of a large copy."""

    flop_per_s: float
    bytes_per_s: float

    @classmethod
    def measure(
        cls, device: torch.device, dtype: torch.dtype, size: int | None = None, copy_bytes: int = _COPY_BYTES
    ) -> Rates:
        """A product of `size` rows, columns and terms, and a copy of `copy_bytes`. Well under a second on a GPU."""
        found = cls(_product_rate(size or _SIZES[device.type], dtype, device), _copy_rate(copy_bytes, device))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was needed here is nobody's
        return found

    @classmethod
    def measure_cpu(
        cls, dtype: torch.dtype, pack: Pack, size: int = _SIZES["cpu"], n_bytes: int = _READ_BYTES
    ) -> Rates:
        """The faster of torch's product and that of a weight which was packed; and bytes a second that are read, for a
        pass writes few."""
        device = torch.device("cpu")
        x, packed = (torch.randn(size, size, dtype=dtype) for _ in range(2))
        product = pack(packed)
        rate = max(2 * size**3 / _median_s(lambda: product(x), device), _product_rate(size, dtype, device))
        return cls(rate, _read_rate(n_bytes, device))

    def linear_ms(self, found: Sequence[Product], n_rows: int) -> float:
        """The least that the products of a pass over `n_rows` take: each row through every weight, also those that
        nobody reads, or every weight read once, whichever takes longer; of experts those that were chosen."""
        return max(self.floors_ms(found, n_rows))

    def floors_ms(self, found: Sequence[Product], n_rows: int) -> tuple[float, float]:
        """The two sides of that: what the arithmetic takes, and what the weights' bytes do."""
        flop, n_bytes = 0, 0
        for product in found:
            if isinstance(product, LinearProduct):
                flop += 2 * n_rows * product.n_in * product.n_out
                n_bytes += product.n_in * product.n_out * product.dtype.itemsize
            else:
                n_touched = len(torch.unique(product.chosen))
                flop += product.flop
                n_bytes += n_touched * 3 * product.size * product.n_in * product.dtype.itemsize
        return self.flop_ms(flop), n_bytes / self.bytes_per_s * 1e3

    def flop_ms(self, flop: int) -> float:
        return flop / self.flop_per_s * 1e3


def _product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _median_s(lambda: a @ b, device)


def _copy_rate(n_bytes: int, device: torch.device) -> float:
    source = torch.ones(n_bytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / _median_s(lambda: target.copy_(source), device)


def _read_rate(n_bytes: int, device: torch.device) -> float:
    source = torch.ones(n_bytes // 4, device=device)
    return n_bytes / _median_s(source.sum, device)


def _median_s(call: Callable[[], object], device: torch.device) -> float:
    run = on_device(call, device)
    times = [run()[0] for _ in range(_N_WARM + _N_TIMED)]
    return statistics.median(times[_N_WARM:]) / 1e3
