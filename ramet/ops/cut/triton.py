"""Drawing from the likeliest part of a vocabulary on CUDA, by the rules for top_k and top_p of
`ops.head.reference.drawn`.

Each row has a program, which sorts nothing. It searches for the rank at which the logits above reach k, or the weight
p: it counts or weighs the logits above several ranks, at equal distances within a bracket, and narrows the bracket to
one rank. Weights are whole multiples of 2^-40, so that sums are the same in any order. First the largest logits of
blocks, or the weights above a few logits, give a bound below which nothing is drawn: the logits above it are listed, in
the order of ids. Where too many lie above it, the search reads the whole row until few are left in the bracket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e38)  # the logit of what is never drawn
_LISTED = 16384  # of a row's logits


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """How M rows of N are drawn, on the device: which [M] int32; of all rows the temperatures, uniforms and top_p (1:
    all) [N] float32, and top_k (0: all) [N] int32; of the M the logits [M, at least V] float32, HIDDEN where an id is
    never drawn."""

    which: torch.Tensor
    temperatures: torch.Tensor
    uniforms: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    logits: torch.Tensor


def draw(
    cuts: Cuts, most: torch.Tensor, n_entries: int, block: int, tokens: torch.Tensor, logprobs: torch.Tensor
) -> None:
    """Write the tokens [N] that are drawn, and their logprobs [N], in whose places are the likeliest ids'. most
    [blocks, N]: the largest logit of each `block` of the V = n_entries. Of a row with NaN the token may be any."""
    n, (n_blocks, n_rows) = len(cuts.which), most.shape
    values = torch.empty(n, _LISTED, dtype=torch.float32, device=most.device)
    ids = torch.empty(n, _LISTED, dtype=torch.int32, device=most.device)
    blocks = torch.empty(n, n_blocks, dtype=torch.int32, device=most.device)
    constants, options = _launch(n_blocks, block)
    _draw_kernel[(n,)](
        cuts.which, cuts.temperatures, cuts.uniforms, cuts.top_p, cuts.top_k, cuts.logits, cuts.logits.stride(0), most,
        values, ids, blocks, tokens, logprobs, n_rows, n_entries, **constants, **options,
    )  # fmt: skip


def _launch(n_blocks: int, block: int) -> tuple[dict[str, Any], dict[str, int]]:
    constants = {
        "n_blocks": n_blocks, "block_b": triton.next_power_of_2(n_blocks), "block_v": block, "n_listed": _LISTED,
        "n_limits": 8, "at_once": 1024, "few": 512,
    }  # fmt: skip
    return constants, {"num_warps": 8, "maxnreg": 128}  # two rows share a multiprocessor


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """The kernel, for compilation without a card."""
    constants, options = _launch(1187, 128)
    kinds = dict.fromkeys(("which_ptr", "top_k_ptr", "ids_ptr", "blocks_ptr"), "*i32") | {"tokens_ptr": "*i64"}
    kinds |= dict.fromkeys(constants, "constexpr")
    types = {name: kinds.get(name, "*fp32" if name.endswith("_ptr") else "i32") for name in _draw_kernel.arg_names}
    yield _draw_kernel, types, constants, options


@triton.jit
def _rank(logits: tl.tensor) -> tl.tensor:
    """Integers in the order of logits, and the same where these are equal."""
    bits = tl.where(logits == 0, 0.0, logits).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weigh(logits: tl.tensor, top: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """exp((logits - top) * scale) in 2^-40, to the nearest, or of two the even."""
    weight = tl.exp((logits.to(tl.float64) - top) * scale) * 1099511627776.0
    return tl.where(weight > 0.25, weight + 6755399441055744.0 - 6755399441055744.0, 0.0).to(tl.int64)


@triton.jit
def _above(
    logits_ptr: tl.tensor, stride: tl.tensor, n: tl.tensor, limits: tl.tensor, top: tl.tensor, scale: tl.tensor,
    counted: tl.constexpr, n_limits: tl.constexpr, at_once: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Of n logits those that rank above each of the limits: their number, or what they weigh. int64."""
    total = tl.zeros((n_limits, at_once), tl.int32 if counted else tl.int64)
    for begin in tl.range(0, n, at_once, num_stages=1 if counted else 4):
        i = begin + tl.arange(0, at_once)
        logits = tl.load(logits_ptr + i.to(tl.int64) * stride, mask=i < n, other=HIDDEN)
        amount = (i < n).to(tl.int32) if counted else _weigh(logits, top, scale)
        total += tl.where(_rank(logits)[None, :] > limits[:, None], amount[None, :], 0)
    return tl.sum(total, 1).to(tl.int64)


@triton.jit
def _weight_above(
    logits_ptr: tl.tensor, n: tl.tensor, low: tl.tensor, top: tl.tensor, scale: tl.tensor, at_once: tl.constexpr
) -> tl.tensor:
    limits = tl.full((1,), 0, tl.int32) + low.to(tl.int32)
    return tl.sum(_above(logits_ptr, 1, n, limits, top, scale, False, 1, at_once), 0)


@triton.jit
def _between(low: tl.tensor, high: tl.tensor, n_limits: tl.constexpr) -> tl.tensor:
    return (low + (high - low) * (1 + tl.arange(0, n_limits)) // (n_limits + 1)).to(tl.int32)


@triton.jit
def _narrow(
    limits: tl.tensor, amounts: tl.tensor, wanted: tl.tensor, low: tl.tensor, high: tl.tensor, under: tl.tensor,
    over: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """A bracket by what ranks above limits: above `low` lies `under`, as much as is wanted; above `high` lies `over`,
    which is less."""
    less = amounts.to(tl.float64) < wanted
    low, high = tl.max(tl.where(less, low, limits), 0), tl.min(tl.where(less, limits, high), 0)
    return low, high, tl.min(tl.where(less, under, amounts), 0), tl.max(tl.where(less, amounts, over), 0)


@triton.jit
def _find(
    logits_ptr: tl.tensor, stride: tl.tensor, n: tl.tensor, wanted: tl.tensor, low: tl.tensor, high: tl.tensor,
    under: tl.tensor, past: tl.tensor, top: tl.tensor, scale: tl.tensor, counted: tl.constexpr,
    n_limits: tl.constexpr, at_once: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The highest rank, between `low` and `high`, above which as much lies as is wanted, or `low`; and how much that
    is. Not among the n logits is what ranks above `high`, if `past` says how much."""
    over = past
    while high - low > 1:
        limits = _between(low, high, n_limits)
        amounts = past + _above(logits_ptr, stride, n, limits, top, scale, counted, n_limits, at_once)
        low, high, under, over = _narrow(limits, amounts, wanted, low, high, under, over)
    return low, under


@triton.jit
def _list(
    logits_ptr: tl.tensor, most: tl.tensor, low: tl.tensor, high: tl.tensor, values_ptr: tl.tensor,
    ids_ptr: tl.tensor, blocks_ptr: tl.tensor, n_entries: tl.tensor, n_blocks: tl.constexpr, block_b: tl.constexpr,
    block_v: tl.constexpr, n_listed: tl.constexpr, at_once: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """List the logits above `low`, of those that rank to `high`, and their ids, in the order of ids; returns how many
    there are, or some number above n_listed where these are more."""
    b = tl.arange(0, block_b)
    some = (b < n_blocks) & (_rank(most) > low)
    tl.debug_barrier()  # what was listed before has been read
    tl.store(blocks_ptr + tl.cumsum(some.to(tl.int32), 0) - 1, b, mask=some)
    tl.debug_barrier()  # what other threads stored is read
    n_some, n, begin = tl.sum(some.to(tl.int32), 0), 0, 0
    n_own: tl.constexpr = at_once // block_v
    while (begin < n_some) & (n <= n_listed):
        own = begin + tl.arange(0, n_own)
        block = tl.load(blocks_ptr + own, mask=own < n_some, other=n_blocks)
        v = tl.reshape(block[:, None] * block_v + tl.arange(0, block_v)[None, :], (at_once,))
        logits = tl.load(logits_ptr + v, mask=v < n_entries, other=HIDDEN)
        rank = _rank(logits)
        inside = (v < n_entries) & (rank > low) & (rank <= high)
        place = n + tl.cumsum(inside.to(tl.int32), 0) - 1
        tl.store(values_ptr + place, logits, mask=inside & (place < n_listed))
        tl.store(ids_ptr + place, v, mask=inside & (place < n_listed))
        n += tl.sum(inside.to(tl.int32), 0)
        begin += n_own
    tl.debug_barrier()
    return n


@triton.jit
def _place(
    logits_ptr: tl.tensor, n: tl.tensor, low: tl.tensor, wanted: tl.tensor, top: tl.tensor, scale: tl.tensor,
    at_once: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The first of n logits up to which those above `low` weigh more than is wanted; -1: none."""
    passed, begin, place = low * 0, 0, -1
    while (place < 0) & (begin < n):
        i = begin + tl.arange(0, at_once)
        logits = tl.load(logits_ptr + i, mask=i < n, other=HIDDEN)
        weight = tl.where(_rank(logits) > low, _weigh(logits, top, scale), 0)
        sums = passed + tl.cumsum(weight, 0)
        first = tl.min(tl.where(sums.to(tl.float64) > wanted, i, n), 0)
        place = tl.where(first < n, first, -1)
        passed += tl.sum(weight, 0)
        begin += at_once
    return place


@triton.jit(do_not_specialize=["n_rows"])
def _draw_kernel(
    which_ptr: tl.tensor, temperatures_ptr: tl.tensor, uniforms_ptr: tl.tensor, top_p_ptr: tl.tensor,
    top_k_ptr: tl.tensor, logits_ptr: tl.tensor, logits_row: tl.tensor, most_ptr: tl.tensor, listed_ptr: tl.tensor,
    ids_ptr: tl.tensor, blocks_ptr: tl.tensor, tokens_ptr: tl.tensor, logprobs_ptr: tl.tensor, n_rows: tl.tensor,
    n_entries: tl.tensor, n_blocks: tl.constexpr, block_b: tl.constexpr, block_v: tl.constexpr,
    n_listed: tl.constexpr, n_limits: tl.constexpr, at_once: tl.constexpr, few: tl.constexpr,
) -> None:  # fmt: skip
    """`few` logits at once of those that are listed, which are seldom more; of a row `at_once`."""
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(which_ptr + i)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row).to(tl.float64)
    temperature = tl.load(temperatures_ptr + row)
    scale = 1.0 / temperature.to(tl.float64)
    logits_ptr += i * logits_row
    listed_ptr += i * n_listed
    ids_ptr += i * n_listed
    blocks_ptr += i * n_blocks
    b = tl.arange(0, block_b)
    most = tl.load(most_ptr + b.to(tl.int64) * n_rows + row, mask=b < n_blocks, other=HIDDEN)
    top = tl.max(most, 0)
    low = _rank(tl.full((), HIDDEN, tl.float32)).to(tl.int64)  # what is drawn ranks above it
    high = _rank(top).to(tl.int64)  # what is drawn does not all rank above it
    none, wanted = low * 0, top_k.to(tl.float64)
    under, over = none + (1 << 62), none
    if top_k > 0:
        low, _ = _find(
            most_ptr + row, n_rows, n_blocks, wanted, low, high, under, none, top, scale, True, n_limits, at_once
        )
    elif top_p < 1:
        part = (1 + tl.arange(0, n_limits)).to(tl.float32) / n_limits
        limits = _rank(top - 29 * part * part * temperature) - 1  # of which nothing below the last weighs anything
        amounts = _above(logits_ptr, 1, n_entries, limits, top, scale, False, n_limits, at_once)
        wanted = top_p * tl.max(amounts, 0).to(tl.float64)
        low, high, under, over = _narrow(limits, amounts, wanted, low, high, under, over)
    n = _list(
        logits_ptr, most, low, none + 0x7FFFFFFF, listed_ptr, ids_ptr, blocks_ptr, n_entries, n_blocks, block_b,
        block_v, n_listed, at_once,
    )  # fmt: skip
    is_listed, values_ptr = n <= n_listed, listed_ptr
    if not is_listed:
        values_ptr = logits_ptr
        n = n_entries
    if top_k > 0:
        low, _ = _find(values_ptr, 1, n, wanted, low, high, under, none, top, scale, True, n_limits, few)
        under = _weight_above(values_ptr, n, low, top, scale, few)
        wanted = top_p * under.to(tl.float64)
    if top_p < 1:
        n_found, past = n, none
        if not is_listed:
            n_found = n_listed + 1
            while (n_found > n_listed) & (high - low > 1):
                limits = _between(low, high, n_limits)
                amounts = _above(logits_ptr, 1, n_entries, limits, top, scale, False, n_limits, at_once)
                low, high, under, over = _narrow(limits, amounts, wanted, low, high, under, over)
                n_found = _list(
                    logits_ptr, most, low, high, listed_ptr, ids_ptr, blocks_ptr, n_entries, n_blocks, block_b, block_v,
                    n_listed, at_once,
                )  # fmt: skip
            past = over  # weighs what is not listed, above `high`
        low, under = _find(listed_ptr, 1, n_found, wanted, low, high, under, past, top, scale, False, n_limits, few)
    elif top_k == 0:
        under = _weight_above(values_ptr, n, low, top, scale, few)
    wanted = tl.load(uniforms_ptr + row).to(tl.float64) * under.to(tl.float64)
    place = _place(values_ptr, n, low, wanted, top, scale, at_once)
    if place >= 0:
        logit = tl.load(values_ptr + place)
        token = place
        if is_listed:
            token = tl.load(ids_ptr + place)
        tl.store(tokens_ptr + row, token.to(tl.int64))
        tl.store(logprobs_ptr + row, tl.load(logprobs_ptr + row) + (logit - top))
