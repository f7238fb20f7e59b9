"""Products in tiles of a few fixed numbers of rows, so that a row's bits depend on that row alone.

A library picks its code, and with it the order of its sums, by the number of rows. Measured with sums that cancel (all
that is left is rounding, so that another order shows): torch 2.13's oneDNN on packed weights, 2 cores of an AMD EPYC
(Zen 4), bfloat16, and float32 for a part of it, K up to 3584, N up to 7168, 100 numbers of rows up to 700. Rows have
the same bits for every number from 2 on, at every place, with and without a residual; a single row has others where K
is more than about 1024. Torch's products on plain float32 weights differ for up to 11 rows too. None of it is promised,
and with more cores a library may cut sums between threads.

So nothing but tiles of fixed sizes is multiplied, and the sizes are tried at load, once for a shape of weight and a
number of threads: a row must have the same bits in all of them and at every place of each. A size that fails is left
out; where all fail, rows are multiplied one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ramet.ops.contracts import Linear

# A round of 400 rows or more takes 3 to 10 % longer than in one product (up to 16 % where K is 576), most of it to put
# the tiles together; with tiles of 64 alone 5 to 20 %, of 256 alone up to 25 %.
SIZES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16)
_ENOUGH = 16  # sums that a size is tried with, at least


Make = Callable[[torch.Tensor, torch.Tensor | None], Linear]

_fit: dict[tuple[object, ...], tuple[int, ...]] = {}


class TiledLinear:
    """x [M, K] -> [M, N] by the product that `make` prepares; each row's bits are a function of that row alone."""

    def __init__(self, make: Make, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._make, self._biased = make, bias is not None
        self._shape, self._dtype, self._device = weight.shape, weight.dtype, weight.device
        self._product = make(_aligned(weight.detach()), bias)
        self._sizes()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._joined(lambda tile: self._product(tile[0]), x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N] float32."""
        return self._joined(lambda tile: self._product.add(*tile), x, residual)

    def _joined(self, product: Callable[[list[torch.Tensor]], torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
        n, sizes, at = len(rows[0]), self._sizes(), 0
        if n == 0:
            return product(list(rows))
        parts = []
        for size in _cut(n, sizes):
            parts.append(product([_tile(x, at, size) for x in rows]))
            at += size
        parts[-1] = parts[-1][: n - at + len(parts[-1])]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _sizes(self) -> tuple[int, ...]:
        """The sizes that are fit for this shape with the threads that torch has now."""
        key = (self._make, self._shape, self._dtype, self._device, self._biased, torch.get_num_threads())
        if key not in _fit:
            n, k = self._shape
            _fit[key] = _try(self._make, n, k, self._dtype, self._device, biased=self._biased)
        return _fit[key]


def _cut(n: int, sizes: tuple[int, ...]) -> Iterator[int]:
    """The largest sizes first; the last may reach beyond n."""
    for size in sizes[:-1]:
        yield from [size] * (n // size)
        n %= size
    yield from [sizes[-1]] * -(-n // sizes[-1])


def _tile(x: torch.Tensor, at: int, size: int) -> torch.Tensor:
    """Rows [at, at + size), zeros behind the last."""
    own = x[at : at + size]
    if len(own) == size:
        return _aligned(own)
    filled = own.new_zeros(size, x.shape[1])
    filled[: len(own)] = own
    return filled


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where it does not lie as torch allocates: a library may sum in another order for another address."""
    return x if x.is_contiguous() and x.data_ptr() % 64 == 0 else x.clone(memory_format=torch.contiguous_format)


def _try(make: Make, n: int, k: int, dtype: torch.dtype, device: torch.device, *, biased: bool) -> tuple[int, ...]:
    """Those of SIZES that give the bits of the smallest fit one; (1,) where none is fit.

    The terms of every sum cancel, so that what comes out is the rounding of the sum's order and nothing else.
    """
    rows, weight = _cancelling(max(1, _ENOUGH // n), n, k, dtype)
    rows, nothing = rows.to(device), torch.zeros(1, n, device=device)
    product = make(weight.to(device), nothing[0].to(dtype) if biased else None)
    fit: list[int] = []
    expected: torch.Tensor | None = None
    for size in reversed(SIZES):
        tiles = [row.repeat(size, 1) for row in rows]
        found = torch.stack([torch.cat((product(x), product.add(x, nothing.repeat(size, 1))), 1) for x in tiles])
        wanted = found[:, :1] if expected is None else expected
        if torch.equal(found, wanted.expand_as(found)):
            fit.insert(0, size)
            expected = wanted
    return tuple(fit) or (1,)


def _cancelling(n_rows: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [n_rows, k] and a weight [n, k] whose sums would be 0 without rounding."""
    generator, half = torch.Generator().manual_seed(0), k // 2
    order = torch.randperm(half, generator=generator)
    rows, weight = torch.zeros(n_rows, k, dtype=dtype), torch.zeros(n, k, dtype=dtype)
    rows[:, :half] = torch.randn(n_rows, half, generator=generator)
    weight[:, :half] = torch.randn(n, half, generator=generator, dtype=dtype)
    rows[:, half : 2 * half], weight[:, half : 2 * half] = -rows[:, order], weight[:, order]
    return rows, weight
