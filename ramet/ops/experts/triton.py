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

from ramet.ops.experts.reference import route as route

_ACTIVATIONS = ("silu", "gelu_tanh")
_MANY_PAIRS = 4096  # more than these are listed in larger steps


def pack(gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> GroupedExperts:
    """As `reference.pack`, for bfloat16 and float32."""
    return GroupedExperts(gate_up, down, activation)


class GroupedExperts:
    """As `reference.PlainExperts`; hidden numbers and products are rounded to x's dtype, sums over experts are not."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> None:
        assert activation in _ACTIVATIONS, activation
        self._gate_up, self._down, self._activation = gate_up.contiguous(), down.contiguous(), activation

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
        lists = _listed(chosen, n_experts, n_rows, tiling.n_rows)
        hidden, products = x.new_empty(n_pairs, size), x.new_empty(n_pairs, width)
        shape = {"n_experts": n_experts, "n_chosen": n_chosen, "width": width, "size": size}
        _gate_up[self._grid(n_pairs, size, tiling, tiling.gate_up)](
            x, self._gate_up, hidden, *lists, n_rows, activation=self._activation,
            **shape, **tiling.options(tiling.gate_up),
        )  # fmt: skip
        _down[self._grid(n_pairs, width, tiling, tiling.down)](
            hidden, self._down, products, *lists, n_rows, **shape, **tiling.options(tiling.down)
        )
        combination = _combination(width, n_chosen)
        grid = (n_rows, triton.cdiv(width, combination["block_columns"]))
        _combine[grid](products, chosen, weights, out, **combination)
        return out

    def _grid(self, n_pairs: int, n_columns: int, tiling: Tiling, product: Product) -> tuple[int]:
        return (_most_tiles(n_pairs, len(self._down), tiling.n_rows) * triton.cdiv(n_columns, product.n_columns),)


@dataclass(frozen=True, slots=True)
class Product:
    """How a grouped product is cut: a tile's columns (gate_up's: of each half), the terms of a step, warps, stages."""

    n_columns: int
    n_terms: int
    n_warps: int
    n_stages: int


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


def _listed(
    chosen: torch.Tensor, n_experts: int, n_rows: int, block_rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The pairs of each expert, ascending [E, N], how many there are [E], and the tiles: their number, then each as
    expert + E * its place among the expert's tiles; all int32."""
    n_pairs = chosen.numel()
    n_tiles = _most_tiles(n_pairs, n_experts, block_rows)
    pairs, counts, tiles = (
        torch.empty(shape, dtype=torch.int32, device=chosen.device)
        for shape in ((n_experts, n_rows), (n_experts,), (1 + n_tiles,))
    )
    _list[(n_experts,)](chosen, pairs, counts, n_pairs, n_rows, **_step(n_pairs))
    _tile[(1,)](counts, tiles, n_rows, n_tiles, **_tiles_of(n_experts, block_rows))
    return pairs, counts, tiles


def _step(n_pairs: int) -> dict[str, int]:
    """How many pairs are looked at at a time."""
    return {"step": 8192, "num_warps": 8} if n_pairs > _MANY_PAIRS else {"step": 1024, "num_warps": 4}


def _tiles_of(n_experts: int, block_rows: int) -> dict[str, int]:
    block_experts = triton.next_power_of_2(n_experts)
    return {"n_experts": n_experts, "block_experts": block_experts, "block_rows": block_rows, "num_warps": 4}


def _combination(width: int, n_chosen: int) -> dict[str, int]:
    return {
        "n_chosen": n_chosen, "width": width, "block_chosen": triton.next_power_of_2(n_chosen),
        "block_columns": min(triton.next_power_of_2(width), 1024), "num_warps": 4,
    }  # fmt: skip


@triton.jit(do_not_specialize=["n_pairs", "n_rows"])
def _list(
    chosen: tl.tensor, pairs: tl.tensor, counts: tl.tensor, n_pairs: tl.tensor, n_rows: tl.tensor, step: tl.constexpr
) -> None:
    """A program for each expert: writes the places in `chosen` where it is, ascending, and their number."""
    expert = tl.program_id(0)
    own = pairs + expert.to(tl.int64) * n_rows
    n_found = 0
    for start in range(0, n_pairs, step):
        pair = start + tl.arange(0, step)
        found = tl.load(chosen + pair, pair < n_pairs, other=-1) == expert
        place = n_found + tl.cumsum(found.to(tl.int32), 0) - 1
        tl.store(own + place, pair, found & (place < n_rows))
        n_found += tl.sum(found.to(tl.int32), 0)
    tl.store(counts + expert, n_found)


@triton.jit(do_not_specialize=["n_rows", "n_tiles"])
def _tile(
    counts: tl.tensor, tiles: tl.tensor, n_rows: tl.tensor, n_tiles: tl.tensor, n_experts: tl.constexpr,
    block_experts: tl.constexpr, block_rows: tl.constexpr,
) -> None:  # fmt: skip
    """One program: the list of tiles, an expert's beside each other."""
    expert = tl.arange(0, block_experts)
    count = tl.load(counts + expert, expert < n_experts, other=0)
    n_own = tl.cdiv(tl.minimum(tl.maximum(count, 0), n_rows), block_rows)
    start = tl.cumsum(n_own, 0) - n_own
    for place in range(tl.max(n_own, 0)):
        at = start + place
        tl.store(tiles + 1 + at, expert + n_experts * place, (place < n_own) & (at < n_tiles))
    tl.store(tiles, tl.minimum(tl.sum(n_own, 0), n_tiles))


@triton.jit
def _rows(
    pairs: tl.tensor, counts: tl.tensor, tiles: tl.tensor, tile: tl.tensor, n_rows: tl.tensor,
    n_experts: tl.constexpr, n_chosen: tl.constexpr, block_rows: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A tile's expert, the pairs of its rows [block_rows] and which of these are rows at all."""
    item = tl.load(tiles + 1 + tile)
    expert = item % n_experts
    expert = tl.where(expert < 0, 0, expert)
    place = (item // n_experts) * block_rows + tl.arange(0, block_rows)
    there = (place >= 0) & (place < tl.minimum(tl.load(counts + expert), n_rows))
    pair = tl.load(pairs + expert.to(tl.int64) * n_rows + place, there, other=-1)
    return expert.to(tl.int64), pair.to(tl.int64), there & (pair >= 0) & (pair < n_rows * n_chosen)


@triton.jit
def _activated(gate: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """As norm's `gated` has it; gelu_tanh by 1 + tanh(z) = 2 sigmoid(2 z)."""
    slope = gate if activation == "silu" else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + tl.exp(-slope))


@triton.jit(do_not_specialize=["n_rows"])
def _gate_up(
    x: tl.tensor, weight: tl.tensor, hidden: tl.tensor, pairs: tl.tensor, counts: tl.tensor, tiles: tl.tensor,
    n_rows: tl.tensor, n_experts: tl.constexpr, n_chosen: tl.constexpr, width: tl.constexpr, size: tl.constexpr,
    activation: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr, block_terms: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of hidden [P, I]: activation(gate) * up, by pair."""
    n_blocks: tl.constexpr = (size + block_columns - 1) // block_columns
    tile, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    if tile >= tl.load(tiles):
        return
    expert, pair, there = _rows(pairs, counts, tiles, tile, n_rows, n_experts, n_chosen, block_rows)
    column = block * block_columns + tl.arange(0, block_columns)
    term = tl.arange(0, block_terms)
    x_at = x + pair[:, None] // n_chosen * width + term[None, :]
    gate_at = weight + expert * (2 * size * width) + column[None, :] * width + term[:, None]
    inside = (column < size)[None, :]
    gate = tl.zeros((block_rows, block_columns), tl.float32)
    up = tl.zeros((block_rows, block_columns), tl.float32)
    for start in range(0, width, block_terms):
        if width % block_terms:
            left = start + term < width
            rows = tl.load(x_at + start, there[:, None] & left[None, :], other=0.0)
            gates = tl.load(gate_at + start, inside & left[:, None], other=0.0)
            ups = tl.load(gate_at + size * width + start, inside & left[:, None], other=0.0)
        elif size % block_columns:
            rows = tl.load(x_at + start, there[:, None], other=0.0)
            gates = tl.load(gate_at + start, inside, other=0.0)
            ups = tl.load(gate_at + size * width + start, inside, other=0.0)
        else:
            rows = tl.load(x_at + start, there[:, None], other=0.0)
            gates = tl.load(gate_at + start)
            ups = tl.load(gate_at + size * width + start)
        gate = tl.dot(rows, gates, gate, input_precision="ieee")
        up = tl.dot(rows, ups, up, input_precision="ieee")
    made = (_activated(gate, activation) * up).to(hidden.dtype.element_ty)
    tl.store(hidden + pair[:, None] * size + column[None, :], made, there[:, None] & inside)


@triton.jit(do_not_specialize=["n_rows"])
def _down(
    hidden: tl.tensor, weight: tl.tensor, products: tl.tensor, pairs: tl.tensor, counts: tl.tensor,
    tiles: tl.tensor, n_rows: tl.tensor, n_experts: tl.constexpr, n_chosen: tl.constexpr, width: tl.constexpr,
    size: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr, block_terms: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of products [P, C], by pair."""
    n_blocks: tl.constexpr = (width + block_columns - 1) // block_columns
    tile, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    if tile >= tl.load(tiles):
        return
    expert, pair, there = _rows(pairs, counts, tiles, tile, n_rows, n_experts, n_chosen, block_rows)
    column = block * block_columns + tl.arange(0, block_columns)
    term = tl.arange(0, block_terms)
    hidden_at = hidden + pair[:, None] * size + term[None, :]
    weight_at = weight + expert * (width * size) + column[None, :] * size + term[:, None]
    inside = (column < width)[None, :]
    total = tl.zeros((block_rows, block_columns), tl.float32)
    for start in range(0, size, block_terms):
        if size % block_terms:
            left = start + term < size
            rows = tl.load(hidden_at + start, there[:, None] & left[None, :], other=0.0)
            terms = tl.load(weight_at + start, inside & left[:, None], other=0.0)
        elif width % block_columns:
            rows = tl.load(hidden_at + start, there[:, None], other=0.0)
            terms = tl.load(weight_at + start, inside, other=0.0)
        else:
            rows = tl.load(hidden_at + start, there[:, None], other=0.0)
            terms = tl.load(weight_at + start)
        total = tl.dot(rows, terms, total, input_precision="ieee")
    made = total.to(products.dtype.element_ty)
    tl.store(products + pair[:, None] * width + column[None, :], made, there[:, None] & inside)


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
    for n_pairs in (_MANY_PAIRS, _MANY_PAIRS + 1):
        yield _variant(_list, "*i64 *i32 *i32 i32 i32", _step(n_pairs))
    yield _variant(_tile, "*i32 *i32 i32 i32", _tiles_of(128, 64))
    yield _variant(_combine, "*bf16 *i64 *fp32 *bf16", _combination(2816, 8))
    cases = (
        ("bf16", torch.bfloat16, (9, 0), 1), ("bf16", torch.bfloat16, (9, 0), 99),
        ("bf16", torch.bfloat16, (8, 0), 99), ("fp32", torch.float32, (9, 0), 1),
    )  # fmt: skip
    for name, dtype, card, load in cases:
        tiling = choose_tiling(dtype, card, load, 2816, 704)
        types = f"*{name} *{name} *{name} *i32 *i32 *i32 i32"
        yield _variant(_gate_up, types, {**shape, "activation": "gelu_tanh", **tiling.options(tiling.gate_up)})
        yield _variant(_down, types, {**shape, **tiling.options(tiling.down)})


def _variant(kernel: Any, types: str, given: Mapping[str, Any]) -> Variant:
    options = {name: value for name, value in given.items() if name in ("num_warps", "num_stages")}
    constants = {name: value for name, value in given.items() if name not in options}
    arguments = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(arguments, types.split(), strict=True)) | dict.fromkeys(constants, "constexpr")
    return kernel, {name: signature[name] for name in kernel.arg_names}, constants, options
