"""All experts of a layer: the kernel against plain torch, and a row's bits whatever shares the call."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from fixtures.cpu_variants import CpuVariants
from torch.nn import functional
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

from ramet.layers.experts import TopKRouter
from ramet.ops import OpShape, choose
from ramet.ops.experts import reference
from ramet.ops.experts.native import PackedExperts
from ramet.ops.linear import reference as linear

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
DTYPES = list(TOLERANCE)
cpu = CpuVariants("experts")
SIZES = [(8, 40, 96), (5, 16, 64), (3, 41, 63), (1, 1, 1), (20, 130, 200)]  # experts, size, width


def pack(gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> Any:
    """By the variant that a layer with experts of this dtype gets."""
    return cpu.of(OpShape(gate_up.dtype, has_experts=True)).pack(gate_up, down, activation)


def weights(n_experts: int, size: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up, down = torch.randn(n_experts, 2 * size, width), torch.randn(n_experts, width, size)
    return (gate_up * width**-0.5).to(dtype), (down * size**-0.5).to(dtype)


def inputs(n_rows: int, n_experts: int, n_chosen: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shares, chosen = torch.randn(n_rows, n_experts).softmax(-1).topk(min(n_chosen, n_experts), -1)
    return torch.randn(n_rows, width).to(dtype), chosen, shares / shares.sum(-1, keepdim=True)


def plain(x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, *made: Any) -> torch.Tensor:
    """Row by row, expert by expert, in float64."""
    gate_up, down, activation = made[0].double(), made[1].double(), made[2]
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        for expert, share in zip(chosen[row].tolist(), shares[row].double(), strict=True):
            gate, up = (gate_up[expert] @ x[row].double()).chunk(2)
            gate = gate * gate.sigmoid() if activation == "silu" else functional.gelu(gate, approximate="tanh")
            out[row] += share * (down[expert] @ (gate * up))
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 7, 65])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_sums_over_the_chosen(dtype: torch.dtype, sizes: tuple[int, int, int], n_rows: int, activation: str) -> None:
    made, given = weights(*sizes, dtype), inputs(n_rows, sizes[0], 3, sizes[2], dtype)
    wanted = plain(*given, *made, activation)
    for prepare in (reference.pack, pack):
        found = prepare(*made, activation)(*given)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_all_rows_want_the_same_experts() -> None:
    """More rows than the kernel takes at a time, and experts that nobody wants."""
    made, (x, _, shares) = weights(6, 32, 48, torch.float32), inputs(500, 6, 2, 48, torch.float32)
    chosen = torch.tensor([[4, 1]]).expand(500, 2)
    found = pack(*made, "silu")(x, chosen, shares)
    torch.testing.assert_close(found, reference.pack(*made, "silu")(x, chosen, shares), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_are_its_own(dtype: torch.dtype) -> None:
    experts = pack(*weights(7, 130, 1100, dtype), "silu")  # wide enough for two parts of a sum
    if not isinstance(experts, PackedExperts):
        pytest.skip(f"no kernel for {dtype} here")
    x, chosen, shares = inputs(300, 7, 3, 1100, dtype)
    together, threads = experts(x, chosen, shares), torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert torch.equal(experts(x, chosen, shares), together)
    finally:
        torch.set_num_threads(threads)
    for rows in ([0], [299], [3, 5, 200], [*range(100, 170)], [*range(299, -1, -1)]):
        assert torch.equal(experts(x[rows], chosen[rows], shares[rows]), together[rows])
    turned = experts(x, chosen.flip(1), shares.flip(1))  # the order of a row's choices is none of the sum
    assert torch.equal(turned, together)


def test_a_row_of_nan_harms_no_other() -> None:
    experts = pack(*weights(4, 24, 32, torch.float32), "silu")
    x, chosen, shares = inputs(20, 4, 2, 32, torch.float32)
    wanted = experts(x, chosen, shares)
    x[11] = torch.nan
    found = experts(x, chosen, shares)
    others = [row for row in range(20) if row != 11]
    assert torch.equal(found[others], wanted[others])
    assert bool(found[11].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_weights_are_let_go(dtype: torch.dtype) -> None:
    if not isinstance(pack(*weights(4, 24, 32, dtype), "silu"), PackedExperts):
        pytest.skip(f"no kernel for {dtype} here")
    made = weights(4, 24, 32, dtype)
    held = [weakref.ref(weight) for weight in made]
    experts = pack(*made, "silu")
    del made
    gc.collect()
    assert [ref() for ref in held] == [None, None]
    assert bool(experts(*inputs(3, 4, 2, 32, dtype)).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_router_rounds_as_transformers(dtype: torch.dtype) -> None:
    config = Qwen3_5MoeTextConfig(hidden_size=64, num_experts=16, num_experts_per_tok=4)
    theirs = Qwen3_5MoeSparseMoeBlock(config).gate.to(dtype)
    theirs.weight.data.normal_()
    x = torch.randn(40, 64).to(dtype)
    ops = choose(x.device, {"experts": "reference"})(OpShape(dtype))
    chosen, shares = TopKRouter(linear.pack(theirs.weight.detach()), 4, ops)(x)
    logits, their_shares, their_chosen = theirs(x)
    assert torch.equal(logits.gather(1, chosen), logits.gather(1, their_chosen))  # theirs takes any of equal ones
    assert torch.equal(shares, their_shares.float())
