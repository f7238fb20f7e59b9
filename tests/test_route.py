"""The choice of experts on the CPU against its reference, by both paths."""

from __future__ import annotations

import pytest
import torch
from kernel_paths import kernel_paths

from ramet.ops.experts import cpu, reference

path, compiled = kernel_paths(cpu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 63, 500])
@pytest.mark.parametrize(("experts", "chosen"), [(128, 8), (8, 3), (5, 1), (40, 40), (257, 17)])
@pytest.mark.parametrize("scaled", [True, False])
def test_route(path: str, dtype: torch.dtype, rows: int, experts: int, chosen: int, scaled: bool) -> None:
    """Bfloat16 logits have many equal ones."""
    wide = torch.full((rows, experts + 3), torch.nan, dtype=dtype)
    logits, scale = wide[:, :experts].normal_(0, 3), torch.rand(experts) + 0.5 if scaled else None
    found, weights = cpu.route(logits, chosen, scale)
    expected, shares = reference.route(logits, chosen, scale)
    assert found.dtype == torch.int64
    assert weights.dtype == torch.float32
    assert torch.equal(found, expected)
    tolerance = 1e-6 if scaled or dtype == torch.float32 else 8e-3  # rounded to logits' dtype, where there is no scale
    torch.testing.assert_close(weights, shares, rtol=tolerance, atol=tolerance / 10)
    if not scaled:
        assert torch.equal(weights, weights.to(dtype).float())


def test_shares_beyond_the_range_of_exp(path: str) -> None:
    logits = torch.tensor([[-3e38, 3e38, 0.0, 3e38], [-1e30, -2e30, -1e30, -torch.inf]])
    chosen, weights = cpu.route(logits, 2, None)
    assert chosen.tolist() == [[1, 3], [0, 2]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert cpu.route(logits, 4, None)[1].tolist() == [[0.5, 0.5, 0.0, 0.0]] * 2


def test_nan_spoils_its_own_row_alone(path: str) -> None:
    logits = torch.randn(3, 20)
    logits[1, 7] = torch.nan
    chosen, weights = cpu.route(logits, 4, None)
    clean, shares = cpu.route(logits[::2], 4, None)
    assert bool(weights[1].isnan().all())
    assert len(set(chosen[1].tolist())) == 4
    assert 0 <= int(chosen[1].min()) <= int(chosen[1].max()) < 20
    assert torch.equal(chosen[::2], clean)
    assert torch.equal(weights[::2], shares)


def test_bits_do_not_depend_on_the_number_of_rows(compiled: None) -> None:
    logits = torch.randn(300, 128)
    whole = cpu.route(logits, 8, None)
    for row in (0, 1, 150, 299):
        alone = cpu.route(logits[row : row + 1], 8, None)
        assert torch.equal(alone[0][0], whole[0][row])
        assert torch.equal(alone[1][0], whole[1][row])
