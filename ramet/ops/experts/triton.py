"""A layer's experts on a GPU: rows are listed by expert, and two grouped products read each chosen expert's weights.

Five launches, whose number and grids depend on shapes alone: `_list` gives each expert the pairs of a row and one of
its choices, `_tile` cuts the lists into tiles of rows, `_gate_up` and `_down` multiply tile by tile, `_combine` adds up
a row's choices. A row's bits depend on that row alone: a tile's rows are summed independently of each other, each in
the order of its terms whatever the tile's size, and with every size the same matrix instructions are used.

What is read from lists is held within bounds, so that no garbage in them leads outside of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ramet.ops.processors import processors

from ramet.ops.experts.reference import route as route

_ACTIVATIONS = ("silu", "gelu_tanh")
_MANY_PAIRS = 4096  # more than these are listed in larger steps


def pack(gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> GroupedExperts:
    """As `reference.pack`, for bfloat16 and float32."""
    return GroupedExperts(gate_up, down, activation)


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


class GroupedExperts:
    """As `reference.PlainExperts`; hidden numbers and products are rounded to x's dtype, sums over experts are not.

    gate_up is kept as [E, I, 2, C], each gate beside its up, so that both are a tile's columns side by side."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> None:
        assert activation in _ACTIVATIONS, activation
        self._gate_up = gate_up.unflatten(1, (2, -1)).transpose(1, 2).contiguous()
        self._down, self._activation = down.contiguous(), activation

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        n_rows, width = x.shape
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if not out.numel():
            return out
        assert chosen.dtype == torch.int64
        assert weights.dtype == torch.float32
        x, chosen, weights = x.contiguous(), chosen.contiguous(), weights.contiguous()
        n_pairs, n_chosen, (n_experts, _, size) = chosen.numel(), chosen.shape[1], self._down.shape
        tiling = choose_tiling(x.dtype, _capability(x.device), n_pairs / n_experts, width, size)
        slots, tiles = _listed(chosen, n_experts, tiling.n_rows)
        hidden, products = x.new_empty(len(slots), size), x.new_empty(n_pairs, width)
        shape = {"n_experts": n_experts, "n_chosen": n_chosen, "width": width, "size": size}
        n_tiles = len(tiles) - 1
        _gate_up[tiling.gate_up.grid(n_tiles, size, x.device)](
            x, tiling.gate_up.of(self._gate_up, 2), hidden, slots, tiles, n_pairs, activation=self._activation,
            **shape, **tiling.options(tiling.gate_up),
        )  # fmt: skip
        _down[tiling.down.grid(n_tiles, width, x.device)](
            tiling.down.rows_of(hidden, tiling.n_rows), tiling.down.of(self._down, 1), products, slots, tiles, n_pairs,
            **shape, **tiling.options(tiling.down),
        )  # fmt: skip
        combination = _combination(width, n_chosen)
        grid = (n_rows, triton.cdiv(width, combination["block_columns"]))
        _combine[grid](products, chosen, weights, out, **combination)
        return out


@dataclass(frozen=True, slots=True)
class Product:
    """How a grouped product is cut: a tile's columns (gate_up's: of each half), the terms of a step, warps, stages.
    described: what is multiplied is copied by tiles (sm_90's tensor maps), where its rows allow that. flat: a program
    goes on from tile to tile, and begins to copy the next one's terms before it has stored the last."""

    n_columns: int
    n_terms: int
    n_warps: int
    n_stages: int
    described: bool = False
    flat: int = 0  # 1: flattened loop, 2: warps specialised over tiles, 3: over terms
    n_programs: int = 1

    def grid(self, n_tiles: int, n_columns: int, device: torch.device) -> tuple[int]:
        n = n_tiles * triton.cdiv(n_columns, self.n_columns)
        return (min(n, self.n_programs * processors(device)) if self.flat in (1, 2) else n,)

    def of(self, weight: torch.Tensor, n_halves: int) -> Any:
        flat = weight.view(-1, weight.shape[-1])
        block = [n_halves * self.n_columns, self.n_terms]
        return TensorDescriptor.from_tensor(flat, block) if self.described else flat

    def rows_of(self, hidden: torch.Tensor, n_rows: int) -> Any:
        return TensorDescriptor.from_tensor(hidden, [n_rows, self.n_terms]) if self.described else hidden


@dataclass(frozen=True, slots=True)
class Tiling:
    """The rows of a tile, which both products share, and the rest of each."""

    n_rows: int
    gate_up: Product
    down: Product

    def options(self, product: Product) -> dict[str, Any]:
        """The constants and options of a launch."""
        return {
            "block_rows": self.n_rows, "block_columns": product.n_columns, "block_terms": product.n_terms,
            "described": product.described, "flat": product.flat,
            "num_warps": product.n_warps, "num_stages": product.n_stages,
        }  # fmt: skip


def choose_tiling(
    dtype: torch.dtype, capability: tuple[int, int], rows_per_expert: float, width: int, size: int
) -> Tiling:
    """Tiles of 64 rows at least, for those of fewer use other matrix instructions, with other bits.

    With few rows an expert the weights' way from memory is what counts: columns are cut small, so that all processors
    take part, and steps are long.
    """
    if dtype == torch.float32:
        return Tiling(32, Product(64, 32, 4, 2), Product(64, 32, 4, 2))
    roomy = capability[0] in (9, 10)  # more than 200 KiB of shared memory; elsewhere there may be but 99
    if rows_per_expert <= 48:
        n_stages = 4 if roomy else 2
        return Tiling(64, Product(32, _step_of(width), 4, n_stages), Product(64, _step_of(size), 4, n_stages))
    if roomy:
        return Tiling(128, Product(128, 64, 8, 4), Product(256, 64, 8, 4))
    return Tiling(128, Product(64, 64, 8, 3), Product(128, 64, 8, 3))


def _step_of(n_terms: int) -> int:
    """The longest step that leaves no remainder, if one does."""
    return 64 if n_terms % 128 else 128


def _capability(device: torch.device) -> tuple[int, int]:
    """Of a CUDA device; elsewhere, where kernels are only interpreted, none."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _most_tiles(n_pairs: int, n_experts: int, block_rows: int) -> int:
    """No choice of experts makes more: each expert has one tile, at most, that is not full."""
    return n_pairs // block_rows + min(n_pairs, n_experts)


def _listed(chosen: torch.Tensor, n_experts: int, block_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs of a row and one of its choices by tiles, -1 where a tile is not full [most tiles * block_rows]; the
    number of tiles, then the expert of each. An expert's tiles are beside each other, its pairs ascending; int32."""
    n_rows, n_chosen = chosen.shape
    n_tiles = _most_tiles(chosen.numel(), n_experts, block_rows)
    steps = _steps(n_rows, n_chosen, n_experts)
    n_blocks = triton.cdiv(n_rows, steps["step"])
    counts, slots, tiles = (
        torch.empty(shape, dtype=torch.int32, device=chosen.device)
        for shape in ((n_blocks, n_experts), (n_tiles * block_rows,), (1 + n_tiles,))
    )
    _count[(n_blocks,)](chosen, counts, n_rows, **steps)
    _place[(n_blocks,)](chosen, counts, slots, tiles, n_rows, n_blocks, n_tiles, **steps, block_rows=block_rows)
    return slots, tiles


def _steps(n_rows: int, n_chosen: int, n_experts: int) -> dict[str, int]:
    """How many rows a program lists."""
    return {
        "step": 32 if n_rows <= 1024 else 64 if n_rows <= 4096 else 128, "n_chosen": n_chosen, "n_experts": n_experts,
        "block_experts": triton.next_power_of_2(n_experts), "num_warps": 8,
    }  # fmt: skip


def _routing(n_experts: int, n_chosen: int, scaled: bool) -> dict[str, int]:
    return {
        "n_experts": n_experts, "n_chosen": n_chosen, "scaled": scaled, "block_rows": 4,
        "block_experts": triton.next_power_of_2(n_experts), "block_chosen": triton.next_power_of_2(n_chosen),
        "num_warps": 4,
    }  # fmt: skip


def _combination(width: int, n_chosen: int) -> dict[str, int]:
    return {
        "n_chosen": n_chosen, "width": width, "block_chosen": triton.next_power_of_2(n_chosen),
        "block_columns": min(triton.next_power_of_2(width), 1024), "num_warps": 4,
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
    logit = tl.load(
        logits + row.to(tl.int64)[:, None] * logits_row + expert[None, :], known, other=float("-inf")
    ).to(tl.float32)
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
    if scaled:
        weight = weight * tl.load(scale + best)
    else:
        weight = weight.to(logits.dtype.element_ty).to(tl.float32)
    at = row.to(tl.int64)[:, None] * n_chosen + place[None, :]
    inside = (row < n_rows)[:, None] & (place < n_chosen)[None, :]
    tl.store(chosen + at, best.to(tl.int64), inside)
    tl.store(weights + at, weight, inside)


@triton.jit
def _choices(
    chosen: tl.tensor, n_rows: tl.tensor, step: tl.constexpr, n_chosen: tl.constexpr, block_experts: tl.constexpr
) -> tl.tensor:
    """[step, block_experts]: 1 + the place of an expert among a row's choices, 0 where it is not among them."""
    row = tl.program_id(0) * step + tl.arange(0, step)
    expert = tl.arange(0, block_experts)
    found = tl.zeros((step, block_experts), tl.int32)
    for place in tl.static_range(n_chosen):
        choice = tl.load(chosen + row.to(tl.int64) * n_chosen + place, row < n_rows, other=-1)
        found = tl.where(choice[:, None] == expert[None, :], place + 1, found)
    return found


@triton.jit(do_not_specialize=["n_rows"])
def _count(
    chosen: tl.tensor, counts: tl.tensor, n_rows: tl.tensor, step: tl.constexpr, n_chosen: tl.constexpr,
    n_experts: tl.constexpr, block_experts: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each `step` rows: how many of them want each expert."""
    found = _choices(chosen, n_rows, step, n_chosen, block_experts)
    expert = tl.arange(0, block_experts)
    count = tl.sum((found > 0).to(tl.int32), 0)
    tl.store(counts + tl.program_id(0) * n_experts + expert, count, expert < n_experts)


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_tiles"])
def _place(
    chosen: tl.tensor, counts: tl.tensor, slots: tl.tensor, tiles: tl.tensor, n_rows: tl.tensor, n_blocks: tl.tensor,
    n_tiles: tl.tensor, step: tl.constexpr, n_chosen: tl.constexpr, n_experts: tl.constexpr,
    block_experts: tl.constexpr, block_rows: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each `step` rows writes their pairs; the first also the rest of each expert's last tile and the
    list of tiles."""
    expert = tl.arange(0, block_experts)
    before = tl.zeros((block_experts,), tl.int32)
    total = tl.zeros((block_experts,), tl.int32)
    for start in range(0, n_blocks, 32):
        block = start + tl.arange(0, 32)
        known = (block < n_blocks)[:, None] & (expert < n_experts)[None, :]
        count = tl.load(counts + block[:, None] * n_experts + expert[None, :], known, other=0)
        count = tl.minimum(tl.maximum(count, 0), step)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where((block < tl.program_id(0))[:, None], count, 0), 0)
    n_own = tl.cdiv(total, block_rows)
    first = tl.cumsum(n_own, 0) - n_own
    found = _choices(chosen, n_rows, step, n_chosen, block_experts)
    wanted = (found > 0).to(tl.int32)
    slot = (first * block_rows + before)[None, :] + tl.cumsum(wanted, 0) - wanted
    row = tl.program_id(0) * step + tl.arange(0, step)
    tl.store(slots + slot, row[:, None] * n_chosen + found - 1, (found > 0) & (slot < n_tiles * block_rows))
    if tl.program_id(0) == 0:
        for start in range(0, block_rows, 32):
            free = (first * block_rows + total + start)[:, None] + tl.arange(0, 32)[None, :]
            end = tl.minimum(first + n_own, n_tiles) * block_rows
            tl.store(slots + free, -1, free < end[:, None])
        for place in range(tl.max(n_own, 0)):
            tl.store(tiles + 1 + first + place, expert, (place < n_own) & (first + place < n_tiles))
        tl.store(tiles, tl.minimum(tl.sum(n_own, 0), n_tiles))


@triton.jit
def _pairs(
    slots: tl.tensor, tile: tl.tensor, n_pairs: tl.tensor, block_rows: tl.constexpr
) -> tl.tensor:
    """The pairs of a tile's rows [block_rows], and which of these are rows at all."""
    pair = tl.load(slots + tile * block_rows + tl.arange(0, block_rows))
    there = (pair >= 0) & (pair < n_pairs)
    return tl.where(there, pair, 0).to(tl.int64), there


@triton.jit
def _expert(tiles: tl.tensor, tile: tl.tensor, n_experts: tl.constexpr) -> tl.tensor:
    return tl.minimum(tl.maximum(tl.load(tiles + 1 + tile), 0), n_experts - 1)


@triton.jit
def _activated(gate: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """As norm's `gated` has it; gelu_tanh by 1 + tanh(z) = 2 sigmoid(2 z)."""
    slope = gate if activation == "silu" else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + tl.exp(-slope))


@triton.jit(do_not_specialize=["n_pairs"])
def _gate_up(
    x: tl.tensor, weight: tl.tensor, hidden: tl.tensor, slots: tl.tensor, tiles: tl.tensor, n_pairs: tl.tensor,
    n_experts: tl.constexpr, n_chosen: tl.constexpr, width: tl.constexpr, size: tl.constexpr,
    activation: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr, block_terms: tl.constexpr,
    described: tl.constexpr, flat: tl.constexpr, gathered: tl.constexpr = False,
) -> None:  # fmt: skip
    """A tile of hidden [slots, I]: activation(gate) * up, by slot."""
    n_blocks: tl.constexpr = (size + block_columns - 1) // block_columns
    term = tl.arange(0, block_terms)
    for item in tl.range(tl.program_id(0), tl.load(tiles) * n_blocks, tl.num_programs(0), flatten=flat == 1, warp_specialize=flat == 2):
        tile, block = item // n_blocks, item % n_blocks
        expert = _expert(tiles, tile, n_experts)
        pair, there = _pairs(slots, tile, n_pairs, block_rows)
        if not gathered:
            x_at = x + (pair // n_chosen * width)[:, None] + term[None, :]
        line = expert * (2 * size) + block * (2 * block_columns)
        if not described:
            own = tl.minimum(block * (2 * block_columns) + tl.arange(0, 2 * block_columns), 2 * size - 1)
            weight_at = weight + expert.to(tl.int64) * (2 * size * width) + own[None, :] * width + term[:, None]
        total = tl.zeros((block_rows, 2 * block_columns), tl.float32)
        for start in tl.range(0, width, block_terms, warp_specialize=flat == 3):
            if gathered:
                rows = x.load([tile * block_rows, start])
            elif width % block_terms:
                rows = tl.load(x_at + start, (start + term < width)[None, :], other=0.0)
            else:
                rows = tl.load(x_at + start)
            if described:
                terms = weight.load([line, start]).T
            elif width % block_terms:
                terms = tl.load(weight_at + start, (start + term < width)[:, None], other=0.0)
            else:
                terms = tl.load(weight_at + start)
            total = tl.dot(rows, terms, total, input_precision="ieee")
        gate, up = tl.split(tl.reshape(total, (block_rows, block_columns, 2)))
        made = (_activated(gate, activation) * up).to(hidden.dtype.element_ty)
        slot = (tile * block_rows + tl.arange(0, block_rows)).to(tl.int64)
        column = block * block_columns + tl.arange(0, block_columns)
        tl.store(hidden + slot[:, None] * size + column[None, :], made, there[:, None] & (column < size)[None, :])


@triton.jit(do_not_specialize=["n_pairs"])
def _down(
    hidden: tl.tensor, weight: tl.tensor, products: tl.tensor, slots: tl.tensor, tiles: tl.tensor, n_pairs: tl.tensor,
    n_experts: tl.constexpr, n_chosen: tl.constexpr, width: tl.constexpr, size: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_terms: tl.constexpr,
    described: tl.constexpr, flat: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of products [P, C], by pair."""
    n_blocks: tl.constexpr = (width + block_columns - 1) // block_columns
    term = tl.arange(0, block_terms)
    for item in tl.range(tl.program_id(0), tl.load(tiles) * n_blocks, tl.num_programs(0), flatten=flat == 1, warp_specialize=flat == 2):
        tile, block = item // n_blocks, item % n_blocks
        expert = _expert(tiles, tile, n_experts)
        if not described:
            slot = (tile * block_rows + tl.arange(0, block_rows)).to(tl.int64)
            hidden_at = hidden + slot[:, None] * size + term[None, :]
            own = tl.minimum(block * block_columns + tl.arange(0, block_columns), width - 1)
            weight_at = weight + expert.to(tl.int64) * (width * size) + own[None, :] * size + term[:, None]
        total = tl.zeros((block_rows, block_columns), tl.float32)
        for start in tl.range(0, size, block_terms, warp_specialize=flat == 3):
            if described:
                rows = hidden.load([tile * block_rows, start])
                terms = weight.load([expert * width + block * block_columns, start]).T
            elif size % block_terms:
                rows = tl.load(hidden_at + start, (start + term < size)[None, :], other=0.0)
                terms = tl.load(weight_at + start, (start + term < size)[:, None], other=0.0)
            else:
                rows = tl.load(hidden_at + start)
                terms = tl.load(weight_at + start)
            total = tl.dot(rows, terms, total, input_precision="ieee")
        pair, there = _pairs(slots, tile, n_pairs, block_rows)
        column = block * block_columns + tl.arange(0, block_columns)
        made = total.to(products.dtype.element_ty)
        tl.store(products + pair[:, None] * width + column[None, :], made, there[:, None] & (column < width)[None, :])


@triton.jit
def _combine(
    products: tl.tensor, chosen: tl.tensor, weights: tl.tensor, out: tl.tensor, n_chosen: tl.constexpr,
    width: tl.constexpr, block_chosen: tl.constexpr, block_columns: tl.constexpr,
) -> None:  # fmt: skip
    """Part of a row: the sum over its experts, ascending, of weight * product."""
    first = tl.program_id(0).to(tl.int64) * n_chosen
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    place = tl.arange(0, block_chosen)
    expert = tl.load(chosen + first + place, place < n_chosen, other=1 << 40)
    weight = tl.load(weights + first + place, place < n_chosen, other=0.0)
    rank = tl.sum((expert[None, :] < expert[:, None]).to(tl.int32), 1)
    total = tl.zeros((block_columns,), tl.float32)
    for turn in tl.static_range(n_chosen):
        at = first + tl.sum(tl.where(rank == turn, place, 0), 0)
        product = tl.load(products + at * width + column, column < width, other=0.0)
        total += product.to(tl.float32) * tl.sum(tl.where(rank == turn, weight, 0.0), 0)
    at = tl.program_id(0).to(tl.int64) * width + column
    tl.store(out + at, total.to(out.dtype.element_ty), column < width)


Variant = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]


def variants() -> Iterator[Variant]:
    """What Gemma 4's shapes launch, to be compiled for cards that are not here: (kernel, signature, constants,
    options)."""
    shape = {"n_experts": 128, "n_chosen": 8, "width": 2816, "size": 704}
    for n_rows in (30, 2000, 20000):
        steps = _steps(n_rows, 8, 128)
        yield _variant(_count, "*i64 *i32 i32", steps)
        yield _variant(_place, "*i64 *i32 *i32 *i32 i32 i32 i32", steps | {"block_rows": 128})
    for name, n_experts, scaled in (("bf16", 128, True), ("bf16", 256, False), ("fp32", 128, True)):
        yield _variant(_route, f"*{name} i32 *fp32 *i64 *fp32 i32", _routing(n_experts, 8, scaled))
    yield _variant(_combine, "*bf16 *i64 *fp32 *bf16", _combination(2816, 8))
    cases = (
        ("bf16", torch.bfloat16, (9, 0), 1), ("bf16", torch.bfloat16, (9, 0), 99),
        ("bf16", torch.bfloat16, (8, 0), 99), ("fp32", torch.float32, (9, 0), 1),
    )  # fmt: skip
    for name, dtype, card, load in cases:
        tiling = choose_tiling(dtype, card, load, 2816, 704)
        types = f"*{name} *{name} *{name} *i32 *i32 i32"
        yield _variant(_gate_up, types, {**shape, "activation": "gelu_tanh", "gathered": False, **tiling.options(tiling.gate_up)})
        yield _variant(_down, types, {**shape, **tiling.options(tiling.down)})


def _variant(kernel: Any, types: str, given: Mapping[str, Any]) -> Variant:
    options = {name: value for name, value in given.items() if name in ("num_warps", "num_stages")}
    constants = {name: value for name, value in given.items() if name not in options}
    arguments = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(arguments, types.split(), strict=True)) | dict.fromkeys(constants, "constexpr")
    return kernel, {name: signature[name] for name in kernel.arg_names}, constants, options
