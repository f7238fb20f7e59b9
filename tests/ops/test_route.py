"""The choice of experts on the CPU against its reference, by both paths."""

from __future__ import annotations

import pytest
import torch
from fixtures.cpu_variants import CpuVariants, kernel_paths

from ramet.ops.route import reference

cpu = CpuVariants("route")
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


GROUPS = [(256, 8, 8, 4), (12, 3, 3, 2), (8, 2, 1, 1), (60, 17, 10, 3), (6, 4, 3, 2)]  # experts, chosen, groups, kept


@pytest.mark.parametrize("rows", [0, 1, 63, 500])
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("coarse", [True, False])
def test_route_grouped(path: str, rows: int, sizes: tuple[int, int, int, int], coarse: bool) -> None:
    """Coarse shares are 0, a half or 1, so that many are equal, with their biases too."""
    torch.manual_seed(rows)
    wide = torch.full((rows, sizes[0] + 3), torch.nan)
    logits, bias = wide[:, : sizes[0]].normal_(0, 2), torch.randn(sizes[0]) * 0.3
    if coarse:
        logits.sign_().mul_(torch.randint(0, 2, logits.shape)).mul_(200)
        bias = (bias * 8).round() / 8
    found, weights = cpu.route_grouped(logits, bias, *sizes[1:], 2.5)
    assert found.dtype == torch.int64
    assert weights.dtype == torch.float32
    for row in range(rows):
        chosen, shares = grouped(logits[row].double(), bias.double(), *sizes[1:], 2.5)
        assert found[row].tolist() == chosen
        torch.testing.assert_close(weights[row].double(), shares, rtol=1e-6, atol=0)


def grouped(
    logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
) -> tuple[list[int], torch.Tensor]:
    """Of one row, in words: float64, with lists."""
    shares = logits.sigmoid().round(decimals=15)
    biased, size = (shares + bias).tolist(), len(logits) // n_groups
    sums = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(n_groups)]
    kept = sorted(range(n_groups), key=lambda g: (-sums[g], g))[:n_kept]
    experts = [e for e in range(len(biased)) if e // size in kept]
    chosen = sorted(experts, key=lambda e: (-biased[e], e))[:n_chosen]
    weights = shares[chosen]
    return chosen, weights / (weights.sum() + 1e-20) * scale


def test_a_bias_chooses_and_weighs_nothing(path: str) -> None:
    logits, bias = torch.tensor([[0.0, 1.0, 2.0, -3.0]]), torch.tensor([0.0, 0.0, 0.0, 5.0])
    chosen, weights = cpu.route_grouped(logits, bias, 2, 1, 1, 1.0)
    assert chosen.tolist() == [[3, 2]]
    torch.testing.assert_close(weights[0], logits[0, [3, 2]].sigmoid() / logits[0, [3, 2]].sigmoid().sum())


def test_a_group_counts_by_its_two_best(path: str) -> None:
    """The group of the one best expert is left out."""
    logits = torch.tensor([[3.0, -9.0, -9.0, 1.0, 1.5, -9.0]])
    assert cpu.route_grouped(logits, torch.zeros(6), 2, 2, 1, 1.0)[0].tolist() == [[4, 3]]


def test_shares_that_all_vanish(path: str) -> None:
    chosen, weights = cpu.route_grouped(torch.full((2, 8), -200.0), torch.zeros(8), 3, 4, 2, 2.5)
    assert chosen.tolist() == [[0, 1, 2]] * 2
    assert weights.tolist() == [[0.0] * 3] * 2


def test_nan_in_groups_spoils_its_own_row_alone(path: str) -> None:
    logits = torch.randn(3, 24)
    logits[1, 7] = torch.nan
    chosen, weights = cpu.route_grouped(logits, torch.zeros(24), 5, 6, 3, 1.0)
    clean, shares = cpu.route_grouped(logits[::2], torch.zeros(24), 5, 6, 3, 1.0)
    assert bool(weights[1].isnan().all())
    assert len(set(chosen[1].tolist())) == 5
    assert 0 <= int(chosen[1].min()) <= int(chosen[1].max()) < 24
    assert torch.equal(chosen[::2], clean)
    assert torch.equal(weights[::2], shares)


def test_bits_of_groups_do_not_depend_on_the_number_of_rows(compiled: None) -> None:
    logits, bias = torch.randn(300, 256), torch.randn(256) / 10
    whole = cpu.route_grouped(logits, bias, 8, 8, 4, 2.5)
    for row in (0, 1, 150, 299):
        alone = cpu.route_grouped(logits[row : row + 1], bias, 8, 8, 4, 2.5)
        assert torch.equal(alone[0][0], whole[0][row])
        assert torch.equal(alone[1][0], whole[1][row])
