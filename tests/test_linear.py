"""Products on packed weights against plain torch."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ramet.ops.linear import cpu, reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rows", [0, 1, 7, 12, 63, 65, 500])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (1, 576), (63, 65)])
@pytest.mark.parametrize("biased", [False, True])
def test_products(dtype: torch.dtype, rows: int, n: int, k: int, biased: bool) -> None:
    weight, x = torch.randn(n, k).to(dtype), torch.randn(rows, k).to(dtype)
    bias, residual = torch.randn(n).to(dtype), torch.randn(rows, n).to(dtype)
    packed = cpu.pack(weight.clone(), bias if biased else None)
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    limit = TOLERANCE[dtype] * k**0.5
    for found, wanted in ((packed(x), expected), (packed.add(x, residual), expected + residual.double())):
        assert found.dtype == dtype
        assert found.shape == (rows, n)
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=limit)


def test_rows_that_lie_apart() -> None:
    weight, x = torch.randn(48, 32), torch.randn(30, 100)[:, 5:37]
    torch.testing.assert_close(cpu.pack(weight)(x), x @ weight.T, rtol=1e-5, atol=1e-5)


def test_add_leaves_the_residual_alone() -> None:
    weight, x, residual = torch.randn(48, 32), torch.randn(30, 32), torch.randn(30, 48)
    before = residual.clone()
    cpu.pack(weight).add(x, residual)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_weight_is_let_go(dtype: torch.dtype) -> None:
    if not cpu.packs(dtype):
        pytest.skip(f"no packed products of {dtype} here")
    weight = torch.randn(64, 64).to(dtype)
    held = weakref.ref(weight)
    packed = cpu.pack(weight)
    weight.fill_(torch.nan)
    del weight
    gc.collect()
    assert held() is None
    assert bool(packed(torch.ones(3, 64, dtype=dtype)).isfinite().all())


def test_what_does_not_pack_stays_plain() -> None:
    assert isinstance(cpu.pack(torch.randn(8, 8).half()), reference.PlainLinear)
