"""Products on packed weights against plain torch."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from fixtures.cpu_variants import CpuVariants

from ramet.ops import OpShape
from ramet.ops.linear import reference, tiles

cpu = CpuVariants("linear")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None, *, invariant: bool = False) -> Any:
    """By the variant that a weight of this dtype gets."""
    variant = cpu.of(OpShape(weight.dtype))
    return (variant.pack_invariant if invariant else variant.pack)(weight, bias)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Quicker for small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rows", [0, 1, 7, 12, 63, 65, 500])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (1, 576), (63, 65)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("invariant", [False, True])
def test_products(dtype: torch.dtype, rows: int, n: int, k: int, biased: bool, invariant: bool) -> None:
    weight, x = torch.randn(n, k).to(dtype), torch.randn(rows, k).to(dtype)
    bias, residual = torch.randn(n).to(dtype), torch.randn(rows, n)
    packed = pack(weight.clone(), bias if biased else None, invariant=invariant)
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    limit = TOLERANCE[dtype] * k**0.5
    total = expected + residual.double()
    for found, wanted, left in ((packed(x), expected, dtype), (packed.add(x, residual), total, torch.float32)):
        assert found.dtype == left
        assert found.shape == (rows, n)
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=limit)


def test_what_is_added_is_not_rounded() -> None:
    """A residual stream keeps what bfloat16 cannot show, and, by the kernels, so does what is added to it."""
    weight, x = torch.eye(64).bfloat16(), torch.full((3, 64), 2.0**-9).bfloat16()
    found = pack(weight).add(x, torch.ones(3, 64))
    assert torch.equal(found, torch.full((3, 64), 1 + 2.0**-9))


def test_rows_that_lie_apart() -> None:
    weight, x = torch.randn(48, 32), torch.randn(30, 100)[:, 5:37]
    torch.testing.assert_close(pack(weight)(x), x @ weight.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 33])
def test_rows_of_another_width_are_refused(dtype: torch.dtype, width: int) -> None:
    """A kernel that believed it would read what lies behind them."""
    packed = pack(torch.randn(48, 32).to(dtype))
    with pytest.raises((AssertionError, RuntimeError)):
        packed(torch.randn(4, width).to(dtype))
    with pytest.raises((AssertionError, RuntimeError)):
        packed.add(torch.randn(4, 32).to(dtype), torch.randn(3, 48))


def test_add_leaves_the_residual_alone() -> None:
    weight, x, residual = torch.randn(48, 32), torch.randn(30, 32), torch.randn(30, 48)
    before = residual.clone()
    pack(weight).add(x, residual)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_weight_is_let_go(dtype: torch.dtype) -> None:
    if cpu.of(OpShape(dtype)) is reference:
        pytest.skip(f"no packed products of {dtype} here")
    weight = torch.randn(64, 64).to(dtype)
    held = weakref.ref(weight)
    packed = pack(weight)
    weight.fill_(torch.nan)
    del weight
    gc.collect()
    assert held() is None
    assert bool(packed(torch.ones(3, 64, dtype=dtype)).isfinite().all())


def test_what_does_not_pack_stays_plain() -> None:
    assert isinstance(pack(torch.randn(8, 8).half()), reference.PlainLinear)


def cancelling(rows: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] and weight [n, k] whose sums are 0 but for their rounding, so that any other order of a sum shows."""
    order = torch.randperm(k // 2)
    x, weight = torch.randn(rows, k // 2).to(dtype), torch.randn(n, k // 2).to(dtype)
    return torch.cat((x, -x[:, order]), 1), torch.cat((weight, weight[:, order]), 1)


@pytest.mark.parametrize("pack", [partial(pack, invariant=True), reference.pack_invariant])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(64, 2048), (33, 1502), (1, 66)])
def test_a_row_alone_has_the_bits_that_it_has_among_others(
    pack: Callable[[torch.Tensor], tiles.TiledLinear], dtype: torch.dtype, n: int, k: int
) -> None:
    x, weight = cancelling(700, n, k, dtype)
    residual = torch.randn(700, n).mul(1e-5)
    product = pack(weight)
    whole, total = product(x), product.add(x, residual)
    for begin, end in ((0, 1), (699, 700), (3, 5), (100, 117), (1, 65), (200, 300), (5, 700), (0, 513)):
        rows = slice(begin, end)
        assert torch.equal(product(x[rows]), whole[rows])
        assert torch.equal(product.add(x[rows], residual[rows]), total[rows])
    order = torch.randperm(700)
    assert torch.equal(product(x[order]), whole[order])


class Fickle(reference.PlainLinear):
    """Sums in another order where `other` says so of the number of rows, and in the last row where `last`."""

    def __init__(self, other: Callable[[int], bool], last: bool, weight: torch.Tensor) -> None:
        super().__init__(weight, None)
        self.other, self.last = other, last

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        ahead, back = self._sum(x, 1), self._sum(x, -1)
        sums = back if self.other(len(x)) else ahead
        return torch.cat((sums[:-1], back[-1:])) if self.last else sums

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self(x) + residual

    def _sum(self, x: torch.Tensor, step: int) -> torch.Tensor:
        terms = [x[:, i, None] * self.weight[:, i] for i in range(x.shape[1])]
        return functools.reduce(torch.add, terms[::step])


@pytest.mark.parametrize(
    ("other", "last", "expected"),
    [
        (lambda n: n > 64, False, (64, 48, 32, 16)),
        (lambda n: n < 32, False, (16,)),
        (lambda n: n == 32, False, (512, 384, 256, 192, 128, 96, 64, 48, 16)),
        (lambda _: False, True, (1,)),
    ],
)
def test_sizes_that_change_bits_are_left_out(
    other: Callable[[int], bool], last: bool, expected: tuple[int, ...]
) -> None:
    made: list[Fickle] = []
    seen: list[int] = []

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Fickle:
        made.append(Fickle(other, last, weight))
        return made[-1]

    def watched(n: int) -> bool:
        seen.append(n)
        return other(n)

    x, weight = cancelling(70, 8, 40, torch.float32)
    product = tiles.TiledLinear(make, weight, None)
    made[0].other = watched
    whole = product(x)
    assert set(seen) <= set(expected)
    assert torch.equal(product(x[69:]), whole[69:])
    torch.testing.assert_close(whole, x @ weight.T, atol=1e-4, rtol=0)


def test_sizes_are_tried_once_for_a_shape_and_anew_for_other_threads() -> None:
    made = []

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> reference.PlainLinear:
        made.append(weight.shape)
        return reference.PlainLinear(weight, bias)

    before = torch.get_num_threads()
    product = tiles.TiledLinear(make, torch.randn(9, 12), None)
    tiles.TiledLinear(make, torch.randn(9, 12), None)
    assert len(made) == 3
    torch.set_num_threads(before + 1)
    product(torch.randn(3, 12))
    product(torch.randn(5, 12))
    torch.set_num_threads(before)
    product(torch.randn(5, 12))
    assert len(made) == 4


def test_what_is_invariant_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    pack(torch.ones(10, 22), invariant=True)
    assert torch.equal(torch.randn(3), expected)
