"""The choice of a row's experts by Triton's kernel, against the reference."""

from __future__ import annotations

import pytest
import torch
from fixtures.triton_device import DEVICE

from ramet.ops.route import reference, triton

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of rows that are none
DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(128, 8), (128, 1), (40, 8), (7, 7), (1, 1), (60, 5)]  # experts, chosen


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 65])
@pytest.mark.parametrize("scaled", [True, False])
def test_as_the_reference(dtype: torch.dtype, sizes: tuple[int, int], n_rows: int, scaled: bool) -> None:
    """In bfloat16 many logits are equal."""
    n_experts, n_chosen = sizes
    wide = torch.full((n_rows, n_experts + 3), torch.nan, dtype=dtype, device=DEVICE)
    logits = wide[:, :n_experts].normal_()
    scale = torch.rand(n_experts, device=DEVICE) + 0.5 if scaled else None
    chosen, weights = triton.route(logits, n_chosen, scale)
    wanted, their_weights = reference.route(logits, n_chosen, scale)
    assert chosen.dtype == torch.int64
    assert torch.equal(chosen, wanted)
    tolerance = 1e-5 if dtype == torch.float32 or scaled else 8e-3
    torch.testing.assert_close(weights, their_weights, rtol=tolerance, atol=0)


def test_of_equal_logits_the_lowest() -> None:
    logits = torch.zeros(3, 16, dtype=torch.bfloat16, device=DEVICE)
    logits[1, 9:] = 1
    logits[2, 4] = torch.inf  # shares of NaN: the choice must lie within all the same
    chosen, weights = triton.route(logits, 4, None)
    assert chosen.tolist() == [[0, 1, 2, 3], [9, 10, 11, 12], [0, 1, 2, 3]]
    assert weights[:2].tolist() == [[0.25] * 4] * 2
    assert bool(weights[2].isnan().all())


def test_shares_that_vanish_are_chosen_in_order() -> None:
    logits = torch.full((2, 20), -300.0, device=DEVICE)
    logits[:, 13] = 0
    logits[1, 3] = -torch.inf
    chosen, weights = triton.route(logits, 4, None)
    assert chosen.tolist() == [[13, 0, 1, 2]] * 2
    assert weights.tolist() == [[1, 0, 0, 0]] * 2


GROUPS = [(256, 8, 8, 4), (12, 3, 3, 2), (8, 2, 1, 1), (60, 17, 10, 3), (6, 4, 3, 2)]  # experts, chosen, groups, kept


@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 65])
@pytest.mark.parametrize("coarse", [True, False])
def test_groups_as_the_reference(sizes: tuple[int, int, int, int], n_rows: int, coarse: bool) -> None:
    """Coarse shares are 0, a half or 1, so that many are equal, with their biases too."""
    wide = torch.full((n_rows, sizes[0] + 3), torch.nan, device=DEVICE)
    logits, bias = wide[:, : sizes[0]].normal_(0, 2), torch.randn(sizes[0], device=DEVICE) * 0.3
    if coarse:
        logits.sign_().mul_(torch.randint(0, 2, logits.shape, device=DEVICE)).mul_(200)
        bias = (bias * 8).round() / 8
    chosen, weights = triton.route_grouped(logits, bias, *sizes[1:], 2.5)
    wanted, their_weights = reference.route_grouped(logits, bias, *sizes[1:], 2.5)
    assert chosen.dtype == torch.int64
    assert torch.equal(chosen, wanted)
    torch.testing.assert_close(weights, their_weights, rtol=1e-5, atol=0)


def test_groups_of_spoilt_rows() -> None:
    """The choice must lie within, and differ, all the same."""
    logits = torch.full((3, 16), -200.0, device=DEVICE)
    logits[1, 4], logits[2] = torch.nan, torch.nan
    chosen, weights = triton.route_grouped(logits, torch.zeros(16, device=DEVICE), 4, 4, 2, 2.5)
    assert chosen[0].tolist() == [0, 1, 2, 3]
    assert weights[0].tolist() == [0.0] * 4
    assert bool(weights[1:].isnan().all())
    for row in chosen.tolist():
        assert len({*row, *range(16)}) == 16
        assert len(set(row)) == 4
