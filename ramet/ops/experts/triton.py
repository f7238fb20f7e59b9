"""A layer's experts on a GPU: rows are listed by expert, and two grouped products read each chosen expert's weights.

Five launches, whose number and grids depend on shapes alone: `_count` and `_place` list the pairs of a row and one of
its choices by expert, in tiles; `_gate_up` and `_down` multiply tile by tile, `_combine` adds up a row's choices. A
row's bits depend on that row alone: a tile's rows are summed independently of each other, each in the order of its
terms whatever the tile's size, and with every size the same matrix instructions are used.

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
from ramet.ops.shape import takes_all

_ACTIVATIONS = ("silu", "gelu_tanh")


takes = takes_all


def pack(gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> GroupedExperts:
    """As `reference.pack`, for bfloat16 and float32."""
    return GroupedExperts(gate_up, down, activation)


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
        lists = _listed(chosen, n_experts, tiling.n_rows)
        n_tiles = len(lists[1]) - 1
        hidden, products = x.new_empty(n_tiles * tiling.n_rows, size), x.new_empty(n_pairs, width)
        shape = {"n_experts": n_experts, "width": width, "size": size}
        up, down = tiling.gate_up, tiling.down
        _gate_up[up.grid(n_tiles, size, x.device)](
            x, *up.halves(self._gate_up), hidden, *lists, n_pairs, n_chosen=n_chosen, activation=self._activation,
            rest_columns=_rest(size, up.n_columns), **shape, **tiling.options(up),
        )  # fmt: skip
        _down[down.grid(n_tiles, width, x.device)](
            down.tiles(hidden, tiling.n_rows), down.tiles(self._down.view(-1, size), down.n_columns), products, *lists,
            n_pairs, **shape, **tiling.options(down),
        )  # fmt: skip
        combination = _combination(width, n_chosen)
        grid = (n_rows, triton.cdiv(width, combination["block_columns"]))
        _combine[grid](products, chosen, weights, out, **combination)
        return out


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """How a grouped product is cut: a tile's columns (gate_up's: of each half), the terms of a step, warps, stages.
    n_programs: so many run on a processor at a time, each going on from tile to tile, for they begin to copy the next
    one's terms while they store the last; 0 is a program for each tile. described: rows are copied by tiles, as tensor
    maps have it, which begins at multiples of 16 bytes."""

    n_columns: int
    n_terms: int
    n_warps: int
    n_stages: int
    n_programs: int = 0
    described: bool = False

    def grid(self, n_tiles: int, n_columns: int, device: torch.device) -> tuple[int]:
        most = n_tiles * triton.cdiv(n_columns, self.n_columns)
        return (min(most, self.n_programs * processors(device)) if self.n_programs else most,)

    def tiles(self, x: torch.Tensor, n_rows: int) -> Any:
        """x [N, K], of which so many rows are read at a time."""
        return TensorDescriptor.from_tensor(x, [n_rows, self.n_terms]) if self.described else x

    def type(self, name: str, n_rows: int) -> str:
        """Of what `tiles` returns, in Triton's words."""
        return f"tensordesc<{name}[{n_rows},{self.n_terms}]>" if self.described else f"*{name}"

    def halves(self, weight: torch.Tensor) -> tuple[Any, Any]:
        """weight [E, I, 2, K], twice: for columns that make a tile, and for the rest."""
        lines = weight.view(-1, weight.shape[-1])
        return self.tiles(lines, 2 * self.n_columns), self.tiles(lines, 2 * _rest(weight.shape[1], self.n_columns))


def _rest(n_columns: int, block: int) -> int:
    """What the columns that make no tile are rounded up to; fewer would take other matrix instructions."""
    return max(16, int(triton.next_power_of_2(n_columns % block or block)))


@dataclass(frozen=True, slots=True)
class ExpertsTiling:
    """The rows of a tile, which both products share, and the rest of each."""

    n_rows: int
    gate_up: GroupedProduct
    down: GroupedProduct

    def options(self, product: GroupedProduct) -> dict[str, Any]:
        """The constants and options of a launch."""
        return {
            "block_rows": self.n_rows, "block_columns": product.n_columns, "block_terms": product.n_terms,
            "described": product.described,
            "num_warps": product.n_warps, "num_stages": product.n_stages,
        }  # fmt: skip


def choose_tiling(
    dtype: torch.dtype, capability: tuple[int, int], rows_per_expert: float, width: int, size: int
) -> ExpertsTiling:
    """Tiles of 64 rows at least, for those of fewer use other matrix instructions, with other bits.

    With few rows an expert the weights' way from memory is what counts: columns are cut small, so that all processors
    take part, and steps are long.
    """
    if dtype == torch.float32:
        return ExpertsTiling(32, GroupedProduct(64, 32, 4, 2), GroupedProduct(64, 32, 4, 2))
    few, described = rows_per_expert <= 48, width % 8 == 0 and size % 8 == 0
    if capability[0] in (9, 10):  # more than 200 KiB of shared memory, and tensor maps
        if few:
            return ExpertsTiling(
                64, GroupedProduct(64, _step_of(width), 4, 4, 0, described), GroupedProduct(128, 64, 4, 4, 2, described)
            )
        return ExpertsTiling(
            128, GroupedProduct(128, 64, 8, 4, 0, described), GroupedProduct(128, 64, 4, 3, 2, described)
        )
    if few:
        return ExpertsTiling(64, GroupedProduct(32, _step_of(width), 4, 2), GroupedProduct(64, _step_of(size), 4, 2))
    return ExpertsTiling(128, GroupedProduct(64, 64, 8, 3), GroupedProduct(128, 64, 8, 3))


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
    """The pairs of a row and one of its choices by tiles [most tiles * block_rows]; the number of tiles, then for each
    its expert + E * its rows. An expert's tiles lie together, all but the last full, its pairs ascending; int32."""
    n_rows, n_chosen = chosen.shape
    n_tiles = _most_tiles(chosen.numel(), n_experts, block_rows)
    steps = _steps(n_rows, n_chosen, n_experts)
    n_blocks = triton.cdiv(n_rows, steps["block"])
    counts, slots, tiles = (
        torch.empty(shape, dtype=torch.int32, device=chosen.device)
        for shape in ((n_blocks, n_experts), (n_tiles * block_rows,), (1 + n_tiles,))
    )
    _count[(n_blocks,)](chosen, counts, n_rows, **steps)
    _place[(n_blocks,)](chosen, counts, slots, tiles, n_rows, n_blocks, n_tiles, **steps, block_rows=block_rows)
    return slots, tiles


def _steps(n_rows: int, n_chosen: int, n_experts: int) -> dict[str, int]:
    """How many rows a program lists, and at a time."""
    return {
        "block": 32 if n_rows <= 4096 else 128, "step": 32, "n_chosen": n_chosen, "n_experts": n_experts,
        "block_experts": triton.next_power_of_2(n_experts), "num_warps": 8,
    }  # fmt: skip


def _combination(width: int, n_chosen: int) -> dict[str, int]:
    return {
        "n_chosen": n_chosen, "width": width, "block_chosen": triton.next_power_of_2(n_chosen),
        "block_columns": min(triton.next_power_of_2(width), 1024), "num_warps": 4,
    }  # fmt: skip


@triton.jit
def _choices(
    chosen: tl.tensor, row: tl.tensor, n_rows: tl.tensor, n_chosen: tl.constexpr, block_experts: tl.constexpr
) -> tl.tensor:
    """Of rows, by experts: 1 + the place of an expert among a row's choices, 0 where it is not among them."""
    expert = tl.arange(0, block_experts)[None, :]
    found = tl.zeros((row.shape[0], block_experts), tl.int32)
    for place in tl.static_range(n_chosen):
        choice = tl.load(chosen + row.to(tl.int64) * n_chosen + place, row < n_rows, other=-1)
        found = tl.where(choice[:, None] == expert, place + 1, found)
    return found


@triton.jit(do_not_specialize=["n_rows"])
def _count(
    chosen: tl.tensor, counts: tl.tensor, n_rows: tl.tensor, block: tl.constexpr, step: tl.constexpr,
    n_chosen: tl.constexpr, n_experts: tl.constexpr, block_experts: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each `block` rows: how many of them want each expert."""
    expert = tl.arange(0, block_experts)
    wanted = tl.zeros((step, block_experts), tl.int32)
    for start in range(0, block, step):
        row = tl.program_id(0) * block + start + tl.arange(0, step)
        wanted += (_choices(chosen, row, n_rows, n_chosen, block_experts) > 0).to(tl.int32)
    tl.store(counts + tl.program_id(0) * n_experts + expert, tl.sum(wanted, 0), expert < n_experts)


@triton.jit
def _counted(
    counts: tl.tensor, n_blocks: tl.tensor, block: tl.constexpr, step: tl.constexpr, n_experts: tl.constexpr,
    block_experts: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """How many rows want each expert, in all and before this program's."""
    expert = tl.arange(0, block_experts)[None, :]
    total = tl.zeros((step, block_experts), tl.int32)
    before = tl.zeros((step, block_experts), tl.int32)
    for start in range(0, n_blocks, step):
        at = (start + tl.arange(0, step))[:, None]
        count = tl.load(counts + at * n_experts + expert, (at < n_blocks) & (expert < n_experts), other=0)
        count = tl.minimum(tl.maximum(count, 0), block)
        total += count
        before += tl.where(at < tl.program_id(0), count, 0)
    return tl.sum(total, 0), tl.sum(before, 0)


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_tiles"])
def _place(
    chosen: tl.tensor, counts: tl.tensor, slots: tl.tensor, tiles: tl.tensor, n_rows: tl.tensor, n_blocks: tl.tensor,
    n_tiles: tl.tensor, block: tl.constexpr, step: tl.constexpr, n_chosen: tl.constexpr, n_experts: tl.constexpr,
    block_experts: tl.constexpr, block_rows: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each `block` rows writes their pairs, the first also the tiles."""
    expert = tl.arange(0, block_experts)
    total, before = _counted(counts, n_blocks, block, step, n_experts, block_experts)
    n_own = tl.cdiv(total, block_rows)
    first = tl.cumsum(n_own, 0) - n_own
    slot = first * block_rows + before
    for start in range(0, block, step):
        row = tl.program_id(0) * block + start + tl.arange(0, step)
        found = _choices(chosen, row, n_rows, n_chosen, block_experts)
        wanted = (found > 0).to(tl.int32)
        own = slot[None, :] + tl.cumsum(wanted, 0) - wanted
        tl.store(slots + own, row[:, None] * n_chosen + found - 1, (found > 0) & (own < n_tiles * block_rows))
        slot += tl.sum(wanted, 0)
    if tl.program_id(0) == 0:
        for place in range(tl.max(n_own, 0)):
            n_there = tl.minimum(total - place * block_rows, block_rows)
            at = first + place
            tl.store(tiles + 1 + at, expert + n_experts * n_there, (place < n_own) & (at < n_tiles))
        tl.store(tiles, tl.minimum(tl.sum(n_own, 0), n_tiles))


@triton.jit
def _tile(
    slots: tl.tensor, tiles: tl.tensor, tile: tl.tensor, n_pairs: tl.tensor, n_experts: tl.constexpr,
    block_rows: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """A tile's expert, the pairs of its rows [block_rows], and which of these are rows at all."""
    item = tl.maximum(tl.load(tiles + 1 + tile), 0)
    place = tl.arange(0, block_rows)
    there = place < item // n_experts
    pair = tl.load(slots + tile * block_rows + place, there, other=0)
    return item % n_experts, tl.minimum(tl.maximum(pair, 0), n_pairs - 1).to(tl.int64), there


@triton.jit
def _activated(gate: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """As norm's `gated` has it; gelu_tanh by 1 + tanh(z) = 2 sigmoid(2 z)."""
    slope = gate if activation == "silu" else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + tl.exp(-slope))


@triton.jit(do_not_specialize=["n_pairs"])
def _gate_up(
    x: tl.tensor, weight: tl.tensor, rest: tl.tensor, hidden: tl.tensor, slots: tl.tensor, tiles: tl.tensor,
    n_pairs: tl.tensor, n_experts: tl.constexpr, n_chosen: tl.constexpr, width: tl.constexpr, size: tl.constexpr,
    activation: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr, block_terms: tl.constexpr,
    described: tl.constexpr, rest_columns: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of hidden [tiles * block_rows, I]: activation(gate) * up. The last columns may make a narrower tile."""
    n_blocks: tl.constexpr = (size + block_columns - 1) // block_columns
    tile, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    if tile >= tl.load(tiles):
        return
    if rest_columns == block_columns or block < n_blocks - 1:
        _gate_up_tile(
            x, weight, hidden, slots, tiles, tile, block * block_columns, n_pairs, n_experts, n_chosen, width, size,
            activation, block_rows, block_columns, block_terms, described,
        )  # fmt: skip
    else:
        _gate_up_tile(
            x, rest, hidden, slots, tiles, tile, block * block_columns, n_pairs, n_experts, n_chosen, width, size,
            activation, block_rows, rest_columns, block_terms, described,
        )  # fmt: skip


@triton.jit
def _gate_up_tile(
    x: tl.tensor, weight: tl.tensor, hidden: tl.tensor, slots: tl.tensor, tiles: tl.tensor, tile: tl.tensor,
    column: tl.tensor, n_pairs: tl.tensor, n_experts: tl.constexpr, n_chosen: tl.constexpr, width: tl.constexpr,
    size: tl.constexpr, activation: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr,
    block_terms: tl.constexpr, described: tl.constexpr,
) -> None:  # fmt: skip
    """The tile that begins at `column`."""
    expert, pair, there = _tile(slots, tiles, tile, n_pairs, n_experts, block_rows)
    term = tl.arange(0, block_terms)
    x_at, there = x + (pair // n_chosen * width)[:, None] + term[None, :], there[:, None]
    if not described:
        line = tl.minimum(2 * column + tl.arange(0, 2 * block_columns), 2 * size - 1)
        weight_at = weight + expert.to(tl.int64) * (2 * size * width) + line[None, :] * width + term[:, None]
    total = tl.zeros((block_rows, 2 * block_columns), tl.float32)
    for start in range(0, width, block_terms):
        if width % block_terms:
            rows = tl.load(x_at + start, there & (start + term < width)[None, :], other=0.0)
        else:
            rows = tl.load(x_at + start, there, other=0.0)
        if described:
            terms = weight.load([expert * (2 * size) + 2 * column, start]).T
        elif width % block_terms:
            terms = tl.load(weight_at + start, (start + term < width)[:, None], other=0.0)
        else:
            terms = tl.load(weight_at + start)
        total = tl.dot(rows, terms, total, input_precision="ieee")
    gate, up = tl.split(tl.reshape(total, (block_rows, block_columns, 2)))
    made = (_activated(gate, activation) * up).to(hidden.dtype.element_ty)
    slot = (tile * block_rows + tl.arange(0, block_rows)).to(tl.int64)[:, None]
    columns = (column + tl.arange(0, block_columns))[None, :]
    tl.store(hidden + slot * size + columns, made, there & (columns < size))


@triton.jit(do_not_specialize=["n_pairs"])
def _down(
    hidden: tl.tensor, weight: tl.tensor, products: tl.tensor, slots: tl.tensor, tiles: tl.tensor, n_pairs: tl.tensor,
    n_experts: tl.constexpr, width: tl.constexpr, size: tl.constexpr, block_rows: tl.constexpr,
    block_columns: tl.constexpr, block_terms: tl.constexpr, described: tl.constexpr,
) -> None:  # fmt: skip
    """Tiles of products [P, C], by pair."""
    n_blocks: tl.constexpr = (width + block_columns - 1) // block_columns
    term = tl.arange(0, block_terms)
    n_items = tl.load(tiles) * n_blocks
    for item in tl.range(tl.program_id(0), n_items, tl.num_programs(0), flatten=described):
        tile, block = item // n_blocks, item % n_blocks
        expert, pair, there = _tile(slots, tiles, tile, n_pairs, n_experts, block_rows)
        columns = block * block_columns + tl.arange(0, block_columns)
        if not described:
            slot = (tile * block_rows + tl.arange(0, block_rows)).to(tl.int64)
            hidden_at = hidden + slot[:, None] * size + term[None, :]
            line = tl.minimum(columns, width - 1)
            weight_at = weight + expert.to(tl.int64) * (width * size) + line[None, :] * size + term[:, None]
        total = tl.zeros((block_rows, block_columns), tl.float32)
        for start in range(0, size, block_terms):
            if described:
                rows = hidden.load([tile * block_rows, start])
                terms = weight.load([expert * width + block * block_columns, start]).T
            elif size % block_terms:
                rows = tl.load(hidden_at + start, there[:, None] & (start + term < size)[None, :], other=0.0)
                terms = tl.load(weight_at + start, (start + term < size)[:, None], other=0.0)
            else:
                rows = tl.load(hidden_at + start, there[:, None], other=0.0)
                terms = tl.load(weight_at + start)
            total = tl.dot(rows, terms, total, input_precision="ieee")
        made = total.to(products.dtype.element_ty)
        inside = there[:, None] & (columns < width)[None, :]
        tl.store(products + pair[:, None] * width + columns[None, :], made, inside)


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
    """The launches of Gemma 4's shapes, to compile without a card: (kernel, signature, constants, options)."""
    shape = {"n_experts": 128, "width": 2816, "size": 704}
    for n_rows in (30, 20000):
        steps = _steps(n_rows, 8, 128)
        yield variant(_count, "*i64 *i32 i32", steps)
        yield variant(_place, "*i64 *i32 *i32 *i32 i32 i32 i32", steps | {"block_rows": 128})
    yield variant(_combine, "*bf16 *i64 *fp32 *bf16", _combination(2816, 8))
    cases = (
        ("bf16", torch.bfloat16, (9, 0), 1), ("bf16", torch.bfloat16, (9, 0), 99),
        ("bf16", torch.bfloat16, (8, 0), 1), ("bf16", torch.bfloat16, (8, 0), 99),
        ("fp32", torch.float32, (9, 0), 1),
    )  # fmt: skip
    for name, dtype, card, load in cases:
        tiling = choose_tiling(dtype, card, load, 2816, 704)
        up, down, rest = tiling.gate_up, tiling.down, _rest(704, tiling.gate_up.n_columns)
        types = f"*{name} {up.type(name, 2 * up.n_columns)} {up.type(name, 2 * rest)} *{name} *i32 *i32 i32"
        more = {"n_chosen": 8, "activation": "gelu_tanh", "rest_columns": rest}
        yield variant(_gate_up, types, {**shape, **more, **tiling.options(up)})
        types = f"{down.type(name, tiling.n_rows)} {down.type(name, down.n_columns)} *{name} *i32 *i32 i32"
        yield variant(_down, types, {**shape, **tiling.options(down)})


def variant(kernel: Any, types: str, given: Mapping[str, Any]) -> Variant:
    """A launch with arguments of these types, in their order."""
    options = {name: value for name, value in given.items() if name in ("num_warps", "num_stages")}
    constants = {name: value for name, value in given.items() if name not in options}
    arguments = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(arguments, types.split(), strict=True)) | dict.fromkeys(constants, "constexpr")
    return kernel, {name: signature[name] for name in kernel.arg_names}, constants, options
