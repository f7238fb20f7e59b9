"""Products with a layer's weights on CUDA: cuBLAS, and a product of our own whose rows depend on themselves alone.

cuBLAS chooses its code, and with it the order of its sums, by the number of rows. Ours walks K
from the first to the last, as the card's unit for products adds it, 16 at a time, for every tile of every shape: each
number of the result is the same sums in the same order, whatever the tile it lies in, so that tiles can be chosen by
the number of rows for speed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from ramet.ops.processors import processors
from ramet.ops.shape import takes_all

how = "cuBLAS and own kernels, compiled for this card"
takes = takes_all


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> LibraryLinear:
    """Prepare weight [N, K] and bias [N] once at load. The weight is used as it is."""
    return LibraryLinear(weight, bias)


def pack_invariant(weight: torch.Tensor, bias: torch.Tensor | None = None) -> InvariantLinear:
    """As `pack`; the bits of a product's rows depend on nothing but that row."""
    return InvariantLinear(weight, bias)


class LibraryLinear:
    """x [M, K] -> [M, N] by cuBLAS, summed in float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach().to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N] float32, in place: residual must not be used afterwards."""
        if self.bias is not None:
            residual.add_(self.bias)
        if x.dtype == residual.dtype:
            return residual.addmm_(x, self.weight.t())
        if not x.is_cuda:  # elsewhere torch adds no products to another dtype
            return residual.addmm_(x.to(residual.dtype), self.weight.t().to(residual.dtype))
        return torch.addmm(residual, x, self.weight.t(), out_dtype=residual.dtype, out=residual)


class InvariantLinear:
    """x [M, K] -> [M, N] by our own product; each row's bits are a function of that row alone."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight.detach().contiguous()
        self.bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(x), len(self.weight), dtype=x.dtype, device=x.device)
        return self._into(x, out, added=False)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N] float32, in place: residual must not be used afterwards."""
        return self._into(x, residual.contiguous(), added=True)

    def _into(self, x: torch.Tensor, out: torch.Tensor, *, added: bool) -> torch.Tensor:
        if out.numel():
            tile = choose(len(x), *self.weight.shape, x.dtype, processors(x.device), memory_of(x.device), added=added)
            multiply(x, self.weight, self.bias, out, tile, added=added)
        return out


@dataclass(frozen=True, slots=True)
class ProductTile:
    """How a program multiplies: block_m rows by block_n + beside columns of the result, `stages` blocks of K under way.

    Sizes are powers of 2; `beside` columns make a width of two of them, such as 256 + 64. With `flat` one program a
    multiprocessor walks many tiles, and loads the next while it stores the last; block_n columns are stored in `parts`,
    1 or 2."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    flat: bool = False
    parts: int = 1
    beside: int = 0

    @property
    def width(self) -> int:
        return self.block_n + self.beside


@dataclass(frozen=True, slots=True)
class Cost:
    """What a tile was measured to take, in microseconds, and how many of it share a multiprocessor: a step of 64 in K
    with few programs at work (`alone`), with all multiprocessors' (`full`, of all that share), and to begin and end."""

    share: int
    alone: float
    full: float
    ends: float


# fmt: off
_TILES: dict[ProductTile, Cost] = {  # measured on an H200
    ProductTile(128, 256, 64, 8, 4, flat=True, parts=2):  Cost(1, 0.664, 0.790, 2.67),
    ProductTile(128, 256, 64, 8, 3, beside=64):           Cost(1, 0.882, 1.029, 2.80),
    ProductTile(128, 128, 64, 8, 5, beside=64):           Cost(1, 0.551, 0.594, 2.97),
    ProductTile(128, 128, 64, 8, 3):                      Cost(2, 0.489, 0.730, 2.86),
    ProductTile(128, 128, 64, 8, 6):                      Cost(1, 0.331, 0.381, 2.43),
    ProductTile(128, 64, 128, 4, 4):                      Cost(1, 0.215, 0.235, 2.14),
    ProductTile(64, 256, 64, 4, 5):                       Cost(1, 0.315, 0.355, 3.00),
    ProductTile(64, 256, 64, 4, 4, beside=64):            Cost(1, 0.402, 0.455, 3.27),
    ProductTile(64, 128, 64, 4, 4):                       Cost(2, 0.298, 0.437, 2.18),
    ProductTile(64, 64, 128, 4, 5, beside=16):            Cost(1, 0.185, 0.151, 2.60),
    ProductTile(64, 32, 128, 4, 8):                       Cost(1, 0.112, 0.061, 2.71),
}
# fmt: on
EARLY = 64  # of what is added, how many numbers a thread may hold from the beginning
_PLAIN = ProductTile(32, 32, 32, 4, 2)  # float32


@cache
def choose(
    n_rows: int, n: int, k: int, dtype: torch.dtype, n_processors: int, memory: int, *, added: bool
) -> ProductTile:
    """The tile that is expected to take the least time. `memory`: bytes that a program may share."""
    if dtype == torch.float32:
        return _PLAIN
    fitted = {fit(tile, memory, added=added): cost for tile, cost in _TILES.items()}
    able = [tile for tile in fitted if tile.stages > 1]
    return min(able, key=lambda tile: expected(tile, fitted[tile], n_rows, n, k, n_processors))


def fit(tile: ProductTile, memory: int, *, added: bool) -> ProductTile:
    """The tile with as many stages as there is memory for."""
    stage = (tile.block_m + tile.width) * tile.block_k * 2
    # What is stored takes the stages' place, but for a program that goes on with the next tile.
    stored = tile.block_m * (tile.block_n // tile.parts + tile.beside)
    rest = stored * (2 * 4 if added else 2) if tile.flat else 0  # what is added to is float32
    return replace(tile, stages=min(tile.stages, (memory - rest - 512) // stage))


def expected(tile: ProductTile, cost: Cost, n_rows: int, n: int, k: int, n_processors: int) -> float:
    """Microseconds that a product takes: full waves of tiles, and a last one that may leave multiprocessors idle."""
    n_tiles = triton.cdiv(n_rows, tile.block_m) * triton.cdiv(n, tile.width)
    at_once, steps = n_processors * cost.share, k / 64
    waves, left = divmod(n_tiles, at_once)
    ends = cost.ends if tile.flat else cost.ends * (waves + (left > 0))
    last = max(cost.alone, cost.full * left / at_once) if left else 0.0
    return float(ends + steps * (waves * cost.full + last))


@cache
def memory_of(device: torch.device) -> int:
    """Bytes that a program may share on a device."""
    if device.type != "cuda":
        return 227 << 10
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: ProductTile,
    *,
    added: bool,
) -> None:
    """Write x [M, K] @ weight [N, K].T + bias to out [M, N], and what out has, with `added`."""
    described = _described(x, weight, out)
    if not described:
        x = x.contiguous()
    n_tiles = triton.cdiv(len(x), tile.block_m) * triton.cdiv(len(weight), tile.width)
    constants, options = _launch(tile, described, bias is not None, added)
    operands = [
        None if block is None else TensorDescriptor.from_tensor(operand, list(block)) if described else operand
        for operand, block in zip((x, weight, out, weight, out), _blocks(tile), strict=True)
    ]
    _product_kernel[(min(n_tiles, processors(x.device)) if tile.flat else n_tiles,)](
        *operands, bias, out, len(x), *weight.shape, **constants, **options
    )


def _blocks(tile: ProductTile) -> tuple[tuple[int, int] | None, ...]:
    """What is moved at once: of x, weight and the result, and of the latter two beside those."""
    beside = [(tile.beside, tile.block_k), (tile.block_m, tile.beside)] if tile.beside else [None, None]
    result = tile.block_m, tile.block_n // tile.parts
    return (tile.block_m, tile.block_k), (tile.block_n, tile.block_k), result, *beside


def _described(*operands: torch.Tensor) -> bool:
    """Whether the card's own unit for copies can move tiles of them."""
    x = operands[0]
    capable = x.device.type != "cuda" or torch.cuda.get_device_capability(x.device)[0] >= 9
    return capable and all(
        o.stride(1) == 1 and o.stride(0) * o.itemsize % 16 == 0 and o.data_ptr() % 16 == 0 for o in operands
    )


def _launch(tile: ProductTile, described: bool, biased: bool, added: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    early = added and not tile.flat and tile.block_m * tile.width <= EARLY * 32 * tile.warps
    constants = {
        "described": described, "biased": biased, "added": added, "flat": tile.flat,
        "block_m": tile.block_m, "block_n": tile.block_n, "block_k": tile.block_k,
        "parts": tile.parts, "beside": tile.beside, "early": early,
    }  # fmt: skip
    return constants, {"num_warps": tile.warps, "num_stages": tile.stages}


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """The product in all its tiles, for compilation without a card."""
    tiles = list(_TILES)
    ways = [(tile, "bf16", (True, False, True)) for tile in tiles]
    ways += [(tile, "bf16", (False, True, False)) for tile in tiles[1:3]]
    ways += [(tiles[0], "bf16", (True, False, False)), (_PLAIN, "fp32", (True, True, False))]
    for tile, dtype, (described, biased, added) in ways:
        yield variant(fit(tile, 227 << 10, added=added), dtype, described, biased, added)


def variant(
    tile: ProductTile, dtype: str, described: bool, biased: bool, added: bool
) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]:
    """One way to compile the product: kernel, signature, constants, options."""
    constants, options = _launch(tile, described, biased, added)
    result = "fp32" if added else dtype
    operands = [
        "constexpr" if block is None else f"tensordesc<{kind}[{block[0]}, {block[1]}]>" if described else f"*{kind}"
        for block, kind in zip(_blocks(tile), (dtype, dtype, result, dtype, result), strict=True)
    ]
    names = ("x", "weight", "out", "weight_beside", "out_beside", "bias_ptr", "out_ptr")
    signature = dict(zip(names, (*operands, f"*{dtype}", f"*{result}"), strict=True))
    signature |= dict.fromkeys(("n_rows", "n", "k"), "i32") | dict.fromkeys(constants, "constexpr")
    constants |= {name: None for name, kind in signature.items() if kind == "constexpr" and name not in constants}
    return _product_kernel, signature, constants, options


@triton.jit
def place_tile(tile: tl.tensor, n_m: tl.tensor, n_n: tl.tensor, high: tl.constexpr) -> tl.tensor:
    """Which rows and columns of tiles a tile is of: `high` rows of tiles pass over the columns together, so that
    operands are found in the L2 cache."""
    group, inside = tile // (high * n_n), tile % (high * n_n)
    height = min(n_m - group * high, high)
    return group * high + inside % height, inside // height


@triton.jit
def load_tile(
    operand: tl.tensor, row: tl.tensor, column: tl.tensor, n_rows: tl.tensor, n_columns: tl.tensor,
    block_r: tl.constexpr, block_c: tl.constexpr, described: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A tile of an operand, zero outside it."""
    if described:
        tile = operand.load([row, column])
    else:
        r, c = row + tl.arange(0, block_r), column + tl.arange(0, block_c)
        at = operand + r.to(tl.int64)[:, None] * n_columns + c[None, :]
        tile = tl.load(at, mask=(r < n_rows)[:, None] & (c < n_columns)[None, :], other=0.0)
    return tile


@triton.jit
def _store(
    operand: tl.tensor, tile: tl.tensor, row: tl.tensor, column: tl.tensor, n_rows: tl.tensor,
    n_columns: tl.tensor, block_r: tl.constexpr, block_c: tl.constexpr, described: tl.constexpr,
) -> None:  # fmt: skip
    if described:
        operand.store([row, column], tile.to(operand.dtype))
    else:
        r, c = row + tl.arange(0, block_r), column + tl.arange(0, block_c)
        at = operand + r.to(tl.int64)[:, None] * n_columns + c[None, :]
        tl.store(at, tile.to(operand.dtype.element_ty), mask=(r < n_rows)[:, None] & (c < n_columns)[None, :])


@triton.jit
def _finish(
    total: tl.tensor, held: tl.tensor, out: tl.tensor, bias_ptr: tl.tensor, row: tl.tensor, column: tl.tensor,
    n_rows: tl.tensor, n: tl.tensor, described: tl.constexpr, biased: tl.constexpr, added: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr,
) -> None:  # fmt: skip
    """Add what is to be added (`held`, if it was loaded already), round once, and store."""
    if biased:
        c = column + tl.arange(0, block_n)
        total += tl.load(bias_ptr + c, mask=c < n, other=0.0).to(tl.float32)[None, :]
    if held is not None:
        total += held.to(tl.float32)
    elif added:
        total += load_tile(out, row, column, n_rows, n, block_m, block_n, described).to(tl.float32)
    _store(out, total, row, column, n_rows, n, block_m, block_n, described)


@triton.jit
def _multiply_tile(
    tile: tl.tensor, x: tl.tensor, weight: tl.tensor, out: tl.tensor, weight_beside: tl.tensor, out_beside: tl.tensor,
    bias_ptr: tl.tensor, out_ptr: tl.tensor, n_rows: tl.tensor, n: tl.tensor, k: tl.tensor, described: tl.constexpr,
    biased: tl.constexpr, added: tl.constexpr, early: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, parts: tl.constexpr, beside: tl.constexpr,
) -> None:  # fmt: skip
    width: tl.constexpr = block_n + beside
    n_n: tl.tensor = (n + width - 1) // width
    tile_m, tile_n = place_tile(tile, tl.cdiv(n_rows, block_m), n_n, 8)
    row, column = tile_m * block_m, tile_n * width
    held, held_beside = None, None
    total = tl.zeros((block_m, block_n), tl.float32)
    if early:  # what arrives while K is walked
        held = load_tile(out_ptr, row, column, n_rows, n, block_m, block_n, False)
    if beside > 0:
        total_beside = tl.zeros((block_m, beside), tl.float32)
        if early:
            held_beside = load_tile(out_ptr, row, column + block_n, n_rows, n, block_m, beside, False)
    tl.assume(k > 0)  # else the compiler guards the loop, and makes its products wait for each other
    for begin in range(0, k, block_k):
        a = load_tile(x, row, begin, n_rows, k, block_m, block_k, described)
        b = load_tile(weight, column, begin, n, k, block_n, block_k, described)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
        if beside > 0:
            c = load_tile(weight_beside, column + block_n, begin, n, k, beside, block_k, described)
            total_beside = tl.dot(a, tl.trans(c), total_beside, input_precision="ieee")
    if parts == 1:
        _finish(total, held, out, bias_ptr, row, column, n_rows, n, described, biased, added, block_m, block_n)
    else:  # one half behind the other, through half the memory
        half: tl.constexpr = block_n // 2
        left, right = tl.split(tl.permute(tl.reshape(total, (block_m, 2, half)), (0, 2, 1)))
        _finish(left, None, out, bias_ptr, row, column, n_rows, n, described, biased, added, block_m, half)
        _finish(right, None, out, bias_ptr, row, column + half, n_rows, n, described, biased, added, block_m, half)
    if beside > 0:
        _finish(
            total_beside, held_beside, out_beside, bias_ptr, row, column + block_n, n_rows, n,
            described, biased, added, block_m, beside,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_rows"])
def _product_kernel(
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, weight_beside: tl.tensor, out_beside: tl.tensor,
    bias_ptr: tl.tensor, out_ptr: tl.tensor, n_rows: tl.tensor, n: tl.tensor, k: tl.tensor, described: tl.constexpr,
    biased: tl.constexpr, added: tl.constexpr, early: tl.constexpr, flat: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, parts: tl.constexpr, beside: tl.constexpr,
) -> None:  # fmt: skip
    if flat:
        n_tiles = tl.cdiv(n_rows, block_m) * tl.cdiv(n, block_n + beside)
        for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
            _multiply_tile(
                tile, x, weight, out, weight_beside, out_beside, bias_ptr, out_ptr, n_rows, n, k,
                described, biased, added, early, block_m, block_n, block_k, parts, beside,
            )  # fmt: skip
    else:
        _multiply_tile(
            tl.program_id(0), x, weight, out, weight_beside, out_beside, bias_ptr, out_ptr, n_rows, n, k,
            described, biased, added, early, block_m, block_n, block_k, parts, beside,
        )  # fmt: skip
