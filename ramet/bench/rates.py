"""What a device does at most: its rate of products and of copies, measured on it, and what that makes of a pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ramet.bench.products import LinearProduct, Product
from ramet.bench.timing import on_device
from ramet.layers.decoder import Decoder
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
        pass writes few. Each at its best, for a processor may have other work."""
        a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
        product, numbers = pack(b), torch.ones(n_bytes // 4)
        product_s = min(_best_s(lambda: product(a)), _best_s(lambda: a @ b))
        return cls(2 * size**3 / product_s, n_bytes / _best_s(numbers.sum))

    def linear_ms(self, found: Sequence[Product], n_rows: int) -> float:
        """The least that the products of a pass over `n_rows` take: each row through every weight, also those that
        nobody reads, or every weight read once, whichever takes longer; of experts those that were chosen."""
        whole = (replace(x, n_rows=n_rows) if isinstance(x, LinearProduct) else x for x in found)
        return max(self.floors_ms(list(whole)))

    def floors_ms(self, found: Sequence[Product]) -> tuple[float, float]:
        """What the arithmetic of products takes, and what the bytes of their weights do; of experts those that were
        chosen."""
        n_bytes = 0
        for product in found:
            if isinstance(product, LinearProduct):
                n_bytes += product.n_in * product.n_out * product.dtype.itemsize
            else:
                n_touched = len(torch.unique(product.chosen))
                n_bytes += n_touched * 3 * product.size * product.n_in * product.dtype.itemsize
        return self.flop_ms(sum(product.flop for product in found)), n_bytes / self.bytes_per_s * 1e3

    def flop_ms(self, flop: int) -> float:
        return flop / self.flop_per_s * 1e3


def rates_of(decoder: Decoder) -> Rates:
    """Of the device that a model is on, in its dtype."""
    if decoder.device.type == "cuda":
        return Rates.measure(decoder.device, decoder.dtype)
    return Rates.measure_cpu(decoder.dtype, decoder.ops.pack)


def _product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _median_s(lambda: a @ b, device)


def _copy_rate(n_bytes: int, device: torch.device) -> float:
    source = torch.ones(n_bytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / _median_s(lambda: target.copy_(source), device)


def _best_s(call: Callable[[], object]) -> float:
    """Of a call on the CPU."""
    return min(_times_ms(call, torch.device("cpu"))) / 1e3


def _median_s(call: Callable[[], object], device: torch.device) -> float:
    return statistics.median(_times_ms(call, device)) / 1e3


def _times_ms(call: Callable[[], object], device: torch.device) -> list[float]:
    run = on_device(call, device)
    return [run()[0] for _ in range(_N_WARM + _N_TIMED)][_N_WARM:]
