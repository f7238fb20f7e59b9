"""The choice of each row's experts on a GPU. A program has some rows; a row's bits depend on that row alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ramet.ops.experts.triton import Variant, variant
from ramet.ops.shape import takes_all

takes = takes_all


def route(logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.route`. Rows of logits may lie apart. Of a row with NaN the first experts are chosen."""
    n_rows, n_experts = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    chosen = torch.empty(n_rows, n_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(n_rows, n_chosen, dtype=torch.float32, device=logits.device)
    constants = _routing(n_experts, n_chosen, scale is not None)
    if n_rows:
        _route[(triton.cdiv(n_rows, constants["block_rows"]),)](
            logits, logits.stride(0), scale, chosen, weights, n_rows, **constants
        )
    return chosen, weights


def route_grouped(
    logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.route_grouped`. Rows of logits may lie apart. Of a row, what is NaN is chosen last."""
    n_rows, n_experts = logits.shape
    assert n_experts % n_groups == 0
    assert n_chosen <= n_kept * (n_experts // n_groups)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    chosen = torch.empty(n_rows, n_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(n_rows, n_chosen, dtype=torch.float32, device=logits.device)
    constants = _grouping(n_experts, n_chosen, n_groups, n_kept)
    if n_rows:
        _route_grouped[(triton.cdiv(n_rows, constants["block_rows"]),)](
            logits, logits.stride(0), bias, scale, chosen, weights, n_rows, **constants
        )
    return chosen, weights


def _routing(n_experts: int, n_chosen: int, scaled: bool) -> dict[str, int]:
    return {
        "n_experts": n_experts, "n_chosen": n_chosen, "scaled": scaled, "block_rows": 4,
        "block_experts": triton.next_power_of_2(n_experts), "block_chosen": triton.next_power_of_2(n_chosen),
        "num_warps": 4,
    }  # fmt: skip


def _grouping(n_experts: int, n_chosen: int, n_groups: int, n_kept: int) -> dict[str, int]:
    return {
        "n_experts": n_experts, "n_chosen": n_chosen, "n_groups": n_groups, "n_kept": n_kept, "block_rows": 4,
        "block_experts": triton.next_power_of_2(n_experts), "block_chosen": triton.next_power_of_2(n_chosen),
        "block_groups": triton.next_power_of_2(n_groups), "num_warps": 4,
    }  # fmt: skip


@triton.jit(do_not_specialize=["n_rows"])
def _route(
    logits: tl.tensor, logits_row: tl.tensor, scale: tl.tensor, chosen: tl.tensor, weights: tl.tensor,
    n_rows: tl.tensor, n_experts: tl.constexpr, n_chosen: tl.constexpr, scaled: tl.constexpr, block_rows: tl.constexpr,
    block_experts: tl.constexpr, block_chosen: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each block_rows rows: their largest shares, one after the other, each then left out."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    expert, place = tl.arange(0, block_experts), tl.arange(0, block_chosen)
    known = (row < n_rows)[:, None] & (expert < n_experts)[None, :]
    at = logits + row.to(tl.int64)[:, None] * logits_row + expert[None, :]
    logit = tl.load(at, known, other=float("-inf")).to(tl.float32)
    share = tl.exp(logit - tl.max(logit, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    spoilt = tl.sum(share, 1) * 0.0  # NaN where a share is
    left = tl.where(share >= 0.0, share, 0.0)
    left = tl.where((expert < n_experts)[None, :], left, -1.0)
    best = tl.zeros((block_rows, block_chosen), tl.int32)
    weight = tl.zeros((block_rows, block_chosen), tl.float32)
    for turn in tl.static_range(n_chosen):
        most = tl.max(left, 1)
        first = tl.min(tl.where(left == most[:, None], expert[None, :], block_experts), 1)
        left = tl.where(expert[None, :] == first[:, None], -1.0, left)
        best = tl.where((place == turn)[None, :], first[:, None], best)
        weight = tl.where((place == turn)[None, :], (most + spoilt)[:, None], weight)
    weight = weight / tl.sum(weight, 1)[:, None]
    weight = weight * tl.load(scale + best) if scaled else weight.to(logits.dtype.element_ty).to(tl.float32)
    at = row.to(tl.int64)[:, None] * n_chosen + place[None, :]
    inside = (row < n_rows)[:, None] & (place < n_chosen)[None, :]
    tl.store(chosen + at, best.to(tl.int64), inside)
    tl.store(weights + at, weight, inside)


@triton.jit
def _kept_alone(
    biased: tl.tensor, n_experts: tl.constexpr, n_groups: tl.constexpr, n_kept: tl.constexpr,
    block_groups: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Of rows, by experts: what is minus infinity in all groups but the n_kept best."""
    hidden: tl.constexpr = float("-inf")
    expert, group = tl.arange(0, biased.shape[1])[None, :], tl.arange(0, block_groups)[None, :]
    sums = tl.full((biased.shape[0], block_groups), hidden, tl.float32)
    for each in tl.static_range(n_groups):
        own = tl.where(expert // (n_experts // n_groups) == each, biased, hidden)
        first = tl.max(own, 1)
        place = tl.min(tl.where(own == first[:, None], expert, biased.shape[1]), 1)
        second = tl.max(tl.where(expert == place[:, None], hidden, own), 1)
        sums = tl.where(group == each, (first + second)[:, None], sums)
    kept = tl.zeros(biased.shape, tl.int32)
    for _ in tl.static_range(n_kept):
        best = tl.min(tl.where(sums == tl.max(sums, 1)[:, None], group, block_groups), 1)
        sums = tl.where(group == best[:, None], hidden, sums)
        kept += (expert // (n_experts // n_groups) == best[:, None]).to(tl.int32)
    return tl.where(kept > 0, biased, hidden)


@triton.jit(do_not_specialize=["n_rows", "scale"])
def _route_grouped(
    logits: tl.tensor, logits_row: tl.tensor, bias: tl.tensor, scale: tl.tensor, chosen: tl.tensor, weights: tl.tensor,
    n_rows: tl.tensor, n_experts: tl.constexpr, n_chosen: tl.constexpr, n_groups: tl.constexpr, n_kept: tl.constexpr,
    block_rows: tl.constexpr, block_experts: tl.constexpr, block_chosen: tl.constexpr, block_groups: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each block_rows rows: their largest biased shares, one after the other, each then left out."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    expert, place = tl.arange(0, block_experts), tl.arange(0, block_chosen)
    inside = (expert < n_experts)[None, :]
    at = logits + row.to(tl.int64)[:, None] * logits_row + expert[None, :]
    logit = tl.load(at, (row < n_rows)[:, None] & inside, other=0.0)
    share = 1.0 / (1.0 + tl.exp(-logit))
    spoilt = tl.sum(tl.where(inside, share, 0.0), 1) * 0.0  # NaN where a share is
    biased = share + tl.load(bias + expert, expert < n_experts, other=0.0)[None, :]
    biased = tl.where(biased > -1e30, biased, -1e30)  # no number that is left out, nor NaN
    left = _kept_alone(tl.where(inside, biased, float("-inf")), n_experts, n_groups, n_kept, block_groups)
    best = tl.zeros((block_rows, block_chosen), tl.int32)
    weight = tl.zeros((block_rows, block_chosen), tl.float32)
    for turn in tl.static_range(n_chosen):
        first = tl.min(tl.where(left == tl.max(left, 1)[:, None], expert[None, :], block_experts), 1)
        taken = expert[None, :] == first[:, None]
        left = tl.where(taken, float("-inf"), left)
        own = tl.sum(tl.where(taken, share, 0.0), 1) + spoilt
        best = tl.where((place == turn)[None, :], first[:, None], best)
        weight = tl.where((place == turn)[None, :], own[:, None], weight)
    weight = weight / (tl.sum(weight, 1)[:, None] + 1e-20) * scale
    at = row.to(tl.int64)[:, None] * n_chosen + place[None, :]
    inside = (row < n_rows)[:, None] & (place < n_chosen)[None, :]
    tl.store(chosen + at, best.to(tl.int64), inside)
    tl.store(weights + at, weight, inside)


def variants() -> Iterator[Variant]:
    """The launches of Gemma 4, Qwen3.5-MoE and LLaDA2, to compile without a card: (kernel, signature, constants,
    options)."""
    for name, n_experts, scaled in (("bf16", 128, True), ("bf16", 256, False), ("fp32", 128, True)):
        yield variant(_route, f"*{name} i32 *fp32 *i64 *fp32 i32", _routing(n_experts, 8, scaled))
    yield variant(_route_grouped, "*fp32 i32 *fp32 fp32 *i64 *fp32 i32", _grouping(256, 8, 8, 4))
