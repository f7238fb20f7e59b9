"""Reading the vocabulary on CUDA: a dot product for each column that is asked for, and the logsumexp over the whole
vocabulary, in blocks of entries, of the rows that need it; nothing for the others. Both work from lists that `plan`
makes, of exact lengths: reading stands behind the recorded part of a pass.

Drawing multiplies rows with blocks of entries, of whose logits nothing but maxima and sums is kept; what these amount
to says in which part of which block a row's draw falls, and that part's logits alone are computed again. Of rows that
are drawn from a part of the vocabulary all logits are kept (`ops.cut`). A row's bits depend on that row alone: its
terms are summed in the same order whatever the tile's size, and with every size the same matrix instructions are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ramet.ops.cut.triton import HIDDEN, Cuts
from ramet.ops.cut.triton import draw as draw_cut
from ramet.ops.cut.triton import variants as cut_variants
from ramet.ops.head import reference
from ramet.ops.head.reference import Sampled, Vocabulary, is_cut, part_of
from ramet.ops.linear.triton import load_tile, place_tile
from ramet.ops.processors import processors
from ramet.ops.shape import takes_all
from ramet.round import Capacity, Stream, aligned
from ramet.tree import Sampling

draw = reference.draw  # plain torch everywhere
_ENTRIES = 128  # of a block
_PARTS = 4  # of a block, of which one is computed again
_ROW = 16  # logits, of which a row that is held takes a multiple
_HELD = 256  # rows whose logits are held for all entries
_COLDEST, _HOTTEST = 1e-20, 1e20  # temperatures beyond are as good as these, and have an inverse


takes = takes_all


def prepare(weight: torch.Tensor) -> Vocabulary:
    """As `reference.prepare`. The weight is read as it is."""
    return Vocabulary(weight.detach().contiguous())


def room(_: Capacity) -> dict[str, int]:
    """Nothing: the lists that native/plan.cpp makes are never padded. head/rows [C]: which row of the hidden states
    each column is of. head/normalized [M]: the rows that need their logsumexp; head/slots [R]: which of these each read
    is of, -1 where of none."""
    return {}


def read(
    hidden: torch.Tensor, vocabulary: Vocabulary, stream: Stream, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.read`. hidden may have further rows, which are not looked at. What is read of a row has the same
    bits whatever rows are read with it. A column outside the vocabulary gives NaN.
    """
    hidden = hidden if hidden.stride(-1) == 1 else hidden.contiguous()
    logits, norms = _columns(hidden, vocabulary.weight, stream, softcap)
    if len(stream.work["head/normalized"]):
        _logsumexp(hidden, vocabulary.weight, stream, softcap, norms)
    return logits, norms


def sample(
    hidden: torch.Tensor, rows: torch.Tensor, vocabulary: Vocabulary, sampling: Sampling, *, excluded: int = -1,
    softcap: float = 0.0,
) -> Sampled:  # fmt: skip
    """As `reference.sample`. Holds only the logits of a few rows, those drawn from a part of the vocabulary."""
    weight, n = vocabulary.weight, len(rows)
    assert len(weight) > (0 <= excluded < len(weight))
    x = hidden.index_select(0, rows)
    tokens = torch.empty(n, dtype=torch.int64, device=x.device)
    made = Sampled(tokens, *(torch.empty(n, dtype=torch.float32, device=x.device) for _ in range(2)))
    if np.count_nonzero(is_cut(sampling)) <= _HELD:
        _draw(x, weight, sampling, excluded, softcap, made)
        return made
    for at in range(0, n, _HELD):
        own = slice(at, at + _HELD)
        part = Sampled(made.tokens[own], made.logprobs[own], made.entropy[own])
        _draw(x[own], weight, part_of(sampling, own), excluded, softcap, part)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class _How:
    """How N rows are drawn, on the device: scales [N], the inverses of temperatures, 0 for the likeliest and for rows
    that are drawn from a part; uniforms [N]; whether any has a scale. Where any is drawn from a part: the `Cuts`, and
    each row's place among these [N], -1 for none."""

    scales: torch.Tensor
    uniforms: torch.Tensor
    is_warm: bool
    cuts: Cuts | None = None
    places: torch.Tensor | None = None

    @classmethod
    def of(cls, sampling: Sampling, n_entries: int, device: torch.device) -> _How:
        cut, n = is_cut(sampling), len(sampling.temperatures)
        warm, which = (sampling.temperatures > 0) & ~cut, np.flatnonzero(cut)
        temperatures = sampling.temperatures.clip(_COLDEST, _HOTTEST)
        given = np.zeros((7 if len(which) else 2, aligned(n)), np.float32)  # what begins elsewhere is compiled anew
        given[0, :n] = np.where(warm, 1 / temperatures, 0)
        given[1, :n] = sampling.uniforms
        if len(which):
            given[2:4, :n], whole = (temperatures, sampling.top_p), given[4:].view(np.int32)
            whole[0, :n] = np.where(sampling.top_k < n_entries, sampling.top_k, 0)
            whole[1, :n] = np.where(cut, np.cumsum(cut) - 1, -1)
            whole[2, : len(which)] = which
        scales, uniforms, *further = torch.from_numpy(given).to(device, non_blocking=True)
        if not len(which):
            return cls(scales, uniforms, bool(warm.any()))
        top_k, places, rows = (x.view(torch.int32) for x in further[2:])
        logits = torch.empty(len(which), _ROW * triton.cdiv(n_entries, _ROW), dtype=torch.float32, device=device)
        cuts = Cuts(rows[: len(which)], further[0], uniforms, further[1], top_k, logits)
        return cls(scales, uniforms, bool(warm.any()), cuts, places)


def _draw(
    x: torch.Tensor, weight: torch.Tensor, sampling: Sampling, excluded: int, softcap: float, made: Sampled
) -> None:
    """Write what is drawn for the rows x [N, C]."""
    n, n_entries, n_blocks = len(x), len(weight), triton.cdiv(len(weight), _ENTRIES)
    if not n:
        return
    how = _How.of(sampling, n_entries, x.device)
    ids = torch.empty(n_blocks, n, dtype=torch.int32, device=x.device)
    seen = torch.empty(3 + _PARTS * how.is_warm, n_blocks, n, dtype=torch.float32, device=x.device)
    places, logits = (ids, seen) if how.cuts is None else (how.places, how.cuts.logits)
    tile, operands, described = _multiplied(x, weight)
    n_tiles, held = triton.cdiv(n, tile.rows), how.cuts is not None
    constants, options = tile.launch(x.shape[1], softcap, described=described, warm=how.is_warm, held=held)
    _seen_kernel[tile.grid(n_tiles * n_blocks, x.device)](
        *operands, how.scales, ids, seen, places, logits, logits.stride(0), n, n_entries, n_tiles, n_blocks,
        excluded, softcap, **constants, **options,
    )  # fmt: skip
    blocks = torch.empty(n, dtype=torch.int32, device=x.device)
    rests = torch.empty(3, n, dtype=torch.float32, device=x.device)
    constants, options = _join_launch(n_blocks, warm=how.is_warm)
    _join_kernel[(triton.cdiv(n, constants["block_r"]),)](
        how.scales, how.uniforms, ids, seen, made.tokens, made.logprobs, made.entropy, blocks, rests, n, n_entries,
        excluded, **constants, **options,
    )  # fmt: skip
    if how.is_warm:
        constants, options = _pick_launch(x.shape[1], softcap)
        _pick_kernel[(n,)](
            x, weight, how.scales, seen, blocks, rests, made.tokens, made.logprobs, n, n_entries, n_blocks, excluded,
            softcap, **constants, **options,
        )  # fmt: skip
    if how.cuts is not None:
        draw_cut(how.cuts, seen[0], n_entries, _ENTRIES, made.tokens, made.logprobs)


@dataclass(frozen=True, slots=True)
class HeadTile:
    """How many rows and terms a program has at a time, and its warps and stages. `flat`: so many programs a
    multiprocessor walk all tiles; 0: each tile has its own."""

    rows: int
    terms: int
    warps: int
    stages: int
    flat: int = 0

    def grid(self, n_items: int, device: torch.device) -> tuple[int]:
        return (min(n_items, self.flat * processors(device)) if self.flat else n_items,)

    def launch(
        self, width: int, softcap: float, *, described: bool, warm: bool, held: bool
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Constants and options."""
        constants = {
            "width": width, "capped": softcap > 0, "described": described, "block_v": _ENTRIES, "block_r": self.rows,
            "block_k": self.terms, "warm": warm, "held": held, "n_parts": _PARTS, "flat": self.flat > 0,
        }  # fmt: skip
        options = {"num_warps": self.warps, "num_stages": self.stages}
        if held and self.rows == 128:
            options["maxnreg"] = 128  # two programs share a multiprocessor, as they do where nothing is held
        return constants, options


def _multiplied(x: torch.Tensor, weight: torch.Tensor) -> tuple[HeadTile, tuple[Any, Any], bool]:
    """How rows are multiplied: the tile, the operands of a launch, and whether they are described."""
    described = _described(x, weight)
    tile = choose_tile(len(x), x.dtype, _capability(x.device), described=described)
    if not described:
        return tile, (x, weight), False
    boxes = ([tile.rows, tile.terms], [_ENTRIES, tile.terms])
    return tile, (TensorDescriptor.from_tensor(x, boxes[0]), TensorDescriptor.from_tensor(weight, boxes[1])), True


@cache
def choose_tile(n_rows: int, dtype: torch.dtype, capability: tuple[int, int], *, described: bool) -> HeadTile:
    """One tile for a card; on Hopper, where a tile's sums lie with a warp's rows in the same way in all of them, the
    quickest that was measured on an H200, with 4096 and 2048 terms: 256 rows take 7/4 of the time of 128 there."""
    if dtype == torch.float32:
        return HeadTile(16, 32, 4, 2)
    if capability[0] == 10:
        return HeadTile(128, 64, 8, 3)
    if capability[0] != 9 or not described or n_rows <= 64:
        return HeadTile(64, 64, 4, 4)
    if 4 * triton.cdiv(n_rows, 128) <= 7 * triton.cdiv(n_rows, 256):
        return HeadTile(128, 64, 8, 3)
    return HeadTile(256, 64, 8, 4) if n_rows <= 4096 else HeadTile(256, 64, 8, 3, flat=1)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    """Of a CUDA device; elsewhere, where kernels are only interpreted, Hopper's."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def _described(*operands: torch.Tensor) -> bool:
    """Whether the card's own unit for copies can move tiles of them."""
    capable = _capability(operands[0].device)[0] >= 9
    return capable and all(o.stride(0) * o.itemsize % 16 == 0 and o.data_ptr() % 16 == 0 for o in operands)


def _join_launch(n_blocks: int, *, warm: bool) -> tuple[dict[str, Any], dict[str, int]]:
    block_b = triton.next_power_of_2(n_blocks)
    return {"warm": warm, "n_parts": _PARTS, "n_blocks": n_blocks, "block_b": block_b, "block_r": 4}, {"num_warps": 8}


def _pick_launch(width: int, softcap: float) -> tuple[dict[str, Any], dict[str, int]]:
    constants = {"width": width, "capped": softcap > 0, "block_v": _ENTRIES, "n_parts": _PARTS, "block_k": 256}
    return constants, {"num_warps": 4, "num_stages": 3}


_KINDS = (  # rows, softcap, whether described, whether any row is drawn from the whole vocabulary or from a part of it
    (64, 0.0, True, True, False), (64, 0.0, True, False, True), (65, 0.0, True, False, False),
    (65, 0.0, True, False, True), (129, 0.0, True, True, False), (129, 0.0, True, True, True),
    (8192, 0.0, True, True, True), (65, 30.0, False, True, True),
)  # fmt: skip


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """Every kernel, for compilation without a card."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        for softcap, width in ((0.0, 2560), (30.0, 1040)):
            made = (
                (_columns_kernel, *_columns_launch(width, softcap)),
                (_partial_kernel, *_partial_launch(width, dtype, softcap)),
            )
            for kernel, constants, options in made:
                yield kernel, _types(kernel, name, constants), constants, options
        yield from _sample_variants(dtype, name)
    constants, options = _combine_launch(1940)
    yield _combine_kernel, _types(_combine_kernel, "bf16", constants), constants, options
    for warm in (False, True):
        constants, options = _join_launch(1940, warm=warm)
        yield _join_kernel, _types(_join_kernel, "bf16", constants), constants, options
    yield from cut_variants()


def _sample_variants(
    dtype: torch.dtype, name: str
) -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    for n_rows, softcap, described, warm, held in _KINDS:
        tile = choose_tile(n_rows, dtype, (9, 0), described=described)
        width = 2560 if described else 1043
        constants, options = tile.launch(width, softcap, described=described, warm=warm, held=held)
        operands = {"x": f"*{name}", "weight": f"*{name}"}
        if described:
            sizes = {"x": tile.rows, "weight": _ENTRIES}
            operands = {o: f"tensordesc<{name}[{n},{tile.terms}]>" for o, n in sizes.items()}
        yield _seen_kernel, _types(_seen_kernel, name, constants) | operands, constants, options
        constants, options = _pick_launch(width, softcap)
        yield _pick_kernel, _types(_pick_kernel, name, constants), constants, options


def _columns_launch(width: int, softcap: float) -> tuple[dict[str, Any], dict[str, int]]:
    """A program has a column."""
    block_c = triton.next_power_of_2(width)
    constants = {"width": width, "capped": softcap > 0, "block_c": block_c}
    return constants, {"num_warps": min(4, max(1, block_c // 256))}


def _partial_launch(width: int, dtype: torch.dtype, softcap: float) -> tuple[dict[str, Any], dict[str, int]]:
    """A program has block_v entries and block_r rows, whatever the number of rows. In bfloat16 64 rows take less time
    to multiply than the entries to arrive; two programs share a multiprocessor."""
    constants: dict[str, Any] = {"width": width, "capped": softcap > 0}
    if dtype == torch.float32:
        return constants | {"block_v": 64, "block_r": 16, "block_k": 32}, {"num_warps": 4, "num_stages": 2}
    return constants | {"block_v": 128, "block_r": 64, "block_k": 64}, {"num_warps": 4, "num_stages": 4}


def _combine_launch(n_blocks: int) -> tuple[dict[str, Any], dict[str, int]]:
    return {"n_blocks": n_blocks, "block": triton.next_power_of_2(n_blocks)}, {"num_warps": 4}


def _columns(
    hidden: torch.Tensor, weight: torch.Tensor, stream: Stream, softcap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits [C], and NaN [R] from the same launch."""
    n_columns, n_reads = len(stream.columns), len(stream.read_index)
    logits, norms = (torch.empty(n, dtype=torch.float32, device=hidden.device) for n in (n_columns, n_reads))
    constants, options = _columns_launch(hidden.shape[1], softcap)
    if n_columns or n_reads:
        _columns_kernel[(max(n_columns, n_reads),)](
            hidden, hidden.stride(0), weight, stream.work["head/rows"], stream.columns, logits, norms,
            n_columns, n_reads, len(weight), softcap, **constants, **options,
        )  # fmt: skip
    return logits, norms


def _logsumexp(hidden: torch.Tensor, weight: torch.Tensor, stream: Stream, softcap: float, norms: torch.Tensor) -> None:
    """Write norms [R]."""
    rows = stream.work["head/normalized"]
    constants, options = _partial_launch(hidden.shape[1], hidden.dtype, softcap)
    n_blocks, n_tiles = triton.cdiv(len(weight), constants["block_v"]), triton.cdiv(len(rows), constants["block_r"])
    partial = torch.empty(2, len(rows), n_blocks, dtype=torch.float32, device=hidden.device)
    _partial_kernel[(n_tiles * n_blocks,)](
        hidden, hidden.stride(0), weight, rows, *partial, len(rows), len(weight), n_tiles, n_blocks, softcap,
        **constants, **options,
    )  # fmt: skip
    constants, options = _combine_launch(n_blocks)
    _combine_kernel[(len(norms),)](stream.work["head/slots"], *partial, norms, **constants, **options)


def _types(kernel: Any, dtype: str, constants: dict[str, Any]) -> dict[str, str]:
    """The types of a kernel's arguments, by their names."""
    kinds = {"x_ptr": f"*{dtype}", "weight_ptr": f"*{dtype}", "softcap": "fp32"}
    kinds |= dict.fromkeys(("rows_ptr", "columns_ptr", "slots_ptr", "ids_ptr", "places_ptr"), "*i32")
    kinds |= {"tokens_ptr": "*i64"} | dict.fromkeys(constants, "constexpr")
    return {name: kinds.get(name, "*fp32" if name.endswith("_ptr") else "i32") for name in kernel.arg_names}


@triton.jit
def _capped(x: tl.tensor, softcap: tl.tensor) -> tl.tensor:
    """softcap * tanh(x / softcap), as a series where the formula would cancel."""
    y = x / softcap
    z, wide = y * y, 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(y)) + 1.0)
    series = y * (1.0 + z * (-1 / 3 + z * (2 / 15 + z * (-17 / 315 + z * (62 / 2835 - z * (1382 / 155925))))))
    return softcap * tl.where(tl.abs(y) < 0.25, series, tl.where(y < 0, -wide, wide))


@triton.jit(do_not_specialize=["n_columns", "n_reads"])
def _columns_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, weight_ptr: tl.tensor, rows_ptr: tl.tensor, columns_ptr: tl.tensor,
    logits_ptr: tl.tensor, norms_ptr: tl.tensor, n_columns: tl.tensor, n_reads: tl.tensor, n_entries: tl.tensor,
    softcap: tl.tensor, width: tl.constexpr, capped: tl.constexpr, block_c: tl.constexpr,
) -> None:  # fmt: skip
    i, c = tl.program_id(0), tl.arange(0, block_c)
    tl.store(norms_ptr + i, float("nan"), mask=i < n_reads)
    if i < n_columns:
        row, column = tl.load(rows_ptr + i).to(tl.int64), tl.load(columns_ptr + i).to(tl.int64)
        known = (column >= 0) & (column < n_entries)
        x = tl.load(x_ptr + row * x_row + c, mask=c < width, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + column * width + c, mask=(c < width) & known, other=float("nan")).to(tl.float32)
        logit = tl.sum(tl.where(c < width, x * weight, 0.0), 0)
        tl.store(logits_ptr + i, _capped(logit, softcap) if capped else logit)


@triton.jit(do_not_specialize=["n_rows", "n_tiles"])
def _partial_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, weight_ptr: tl.tensor, rows_ptr: tl.tensor, most_ptr: tl.tensor,
    sum_ptr: tl.tensor, n_rows: tl.tensor, n_entries: tl.tensor, n_tiles: tl.tensor, n_blocks: tl.tensor,
    softcap: tl.tensor, width: tl.constexpr, capped: tl.constexpr, block_v: tl.constexpr, block_r: tl.constexpr,
    block_k: tl.constexpr,
) -> None:  # fmt: skip
    """The largest logit of a block of entries, and the sum of exponentials below it. Programs side by side have other
    rows and the same entries."""
    tile, block = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    r, v = tile * block_r + tl.arange(0, block_r), block * block_v + tl.arange(0, block_v)
    k, rows = tl.arange(0, block_k), tl.load(rows_ptr + r, mask=r < n_rows, other=0).to(tl.int64)
    x_at = x_ptr + rows[:, None] * x_row + k[None, :]
    weight_at = weight_ptr + v.to(tl.int64)[:, None] * width + k[None, :]
    logits = tl.zeros((block_v, block_r), tl.float32)
    for begin in range(0, width, block_k):
        inside = k[None, :] < width - begin
        weight = tl.load(weight_at + begin, mask=(v < n_entries)[:, None] & inside, other=0.0)
        x = tl.load(x_at + begin, mask=(r < n_rows)[:, None] & inside, other=0.0)
        logits = tl.dot(weight, tl.trans(x), logits, input_precision="ieee")
    if capped:
        logits = _capped(logits, softcap)
    logits = tl.where((v < n_entries)[:, None], logits, float("-inf"))
    most = tl.max(logits, 0)
    at = r.to(tl.int64) * n_blocks + block
    tl.store(most_ptr + at, most, mask=r < n_rows)
    tl.store(sum_ptr + at, tl.sum(tl.exp(logits - most[None, :]), 0), mask=r < n_rows)


@triton.jit
def _combine_kernel(
    slots_ptr: tl.tensor, most_ptr: tl.tensor, sum_ptr: tl.tensor, norms_ptr: tl.tensor, n_blocks: tl.constexpr,
    block: tl.constexpr,
) -> None:  # fmt: skip
    """A read's logsumexp from its row's blocks; reads without a row keep what they have."""
    slot, b = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64), tl.arange(0, block)
    if slot >= 0:
        most = tl.load(most_ptr + slot * n_blocks + b, mask=b < n_blocks, other=float("-inf"))
        part = tl.load(sum_ptr + slot * n_blocks + b, mask=b < n_blocks, other=0.0)
        top = tl.max(most, 0)
        tl.store(norms_ptr + tl.program_id(0), top + tl.log(tl.sum(part * tl.exp(most - top), 0)))


LOWEST = tl.constexpr(-1e30)  # lower than every other


@triton.jit
def _multiply(
    x: tl.tensor, weight: tl.tensor, row: tl.tensor, entry: tl.tensor, n_rows: tl.tensor, n_entries: tl.tensor,
    softcap: tl.tensor, width: tl.constexpr, capped: tl.constexpr, described: tl.constexpr, block_r: tl.constexpr,
    block_v: tl.constexpr, block_k: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Logits of block_r rows and block_v entries."""
    logits = tl.zeros((block_r, block_v), tl.float32)
    for begin in range(0, width, block_k):
        a = load_tile(x, row, begin, n_rows, width, block_r, block_k, described)
        b = load_tile(weight, entry, begin, n_entries, width, block_v, block_k, described)
        logits = tl.dot(a, tl.trans(b), logits, input_precision="ieee")
    if capped:
        logits = _capped(logits, softcap)
    return logits


@triton.jit
def _see(
    item: tl.tensor, x: tl.tensor, weight: tl.tensor, scales_ptr: tl.tensor, ids_ptr: tl.tensor, seen_ptr: tl.tensor,
    places_ptr: tl.tensor, logits_ptr: tl.tensor, logits_row: tl.tensor, n_rows: tl.tensor, n_entries: tl.tensor,
    n_tiles: tl.tensor, n_blocks: tl.tensor, excluded: tl.tensor, softcap: tl.tensor, width: tl.constexpr,
    capped: tl.constexpr, described: tl.constexpr, block_v: tl.constexpr, block_r: tl.constexpr, block_k: tl.constexpr,
    warm: tl.constexpr, held: tl.constexpr, n_parts: tl.constexpr,
) -> None:  # fmt: skip
    """Of a block's logits: the first largest one's id [blocks, N]; that logit, the sum of exp(logit - it), and of that
    times (logit - it); with `warm`, by parts, the sum of exp((logit - it) * scale). With `held` the logits of rows that
    have a place are kept."""
    tile, block = place_tile(item, n_tiles, n_blocks, 16)
    row, entry = tile * block_r, block * block_v
    logits = _multiply(
        x, weight, row, entry, n_rows, n_entries, softcap, width, capped, described, block_r, block_v, block_k
    )
    r, v = row + tl.arange(0, block_r), entry + tl.arange(0, block_v)
    logits = tl.where(((v < n_entries) & (v != excluded))[None, :], logits, HIDDEN)
    if held:
        place = tl.load(places_ptr + r, mask=r < n_rows, other=-1).to(tl.int64)
        held_at = logits_ptr + place[:, None] * logits_row + v[None, :]
        tl.store(held_at, logits, mask=(place >= 0)[:, None] & (v < n_entries)[None, :])
    most = tl.max(logits, 1)
    first = tl.min(tl.where(logits == most[:, None], v[None, :], n_entries), 1)
    below = logits - tl.maximum(most, LOWEST)[:, None]
    share = tl.exp(below)
    at, size = block.to(tl.int64) * n_rows + r, n_rows.to(tl.int64) * n_blocks
    tl.store(ids_ptr + at, first, mask=r < n_rows)
    tl.store(seen_ptr + at, most, mask=r < n_rows)
    tl.store(seen_ptr + size + at, tl.sum(share, 1), mask=r < n_rows)
    tl.store(seen_ptr + 2 * size + at, tl.sum(share * below, 1), mask=r < n_rows)
    if warm:
        scale = tl.load(scales_ptr + r, mask=r < n_rows, other=0.0)
        tempered = tl.exp(below * scale[:, None])
        parts = tl.sum(tl.reshape(tempered, (block_r, n_parts, block_v // n_parts)), 2)
        part_at = at[:, None] + (3 + tl.arange(0, n_parts))[None, :] * size
        tl.store(seen_ptr + part_at, parts, mask=(r < n_rows)[:, None])


@triton.jit(do_not_specialize=["n_rows", "n_tiles", "excluded"])
def _seen_kernel(
    x: tl.tensor, weight: tl.tensor, scales_ptr: tl.tensor, ids_ptr: tl.tensor, seen_ptr: tl.tensor,
    places_ptr: tl.tensor, logits_ptr: tl.tensor, logits_row: tl.tensor, n_rows: tl.tensor, n_entries: tl.tensor,
    n_tiles: tl.tensor, n_blocks: tl.tensor, excluded: tl.tensor, softcap: tl.tensor, width: tl.constexpr,
    capped: tl.constexpr, described: tl.constexpr, block_v: tl.constexpr, block_r: tl.constexpr, block_k: tl.constexpr,
    warm: tl.constexpr, held: tl.constexpr, n_parts: tl.constexpr, flat: tl.constexpr,
) -> None:  # fmt: skip
    """A program for each item, or with `flat` many in turn: it begins to load the next while it sums up the last."""
    if flat:
        for item in tl.range(tl.program_id(0), n_tiles * n_blocks, tl.num_programs(0), flatten=True):
            _see(
                item, x, weight, scales_ptr, ids_ptr, seen_ptr, places_ptr, logits_ptr, logits_row, n_rows, n_entries,
                n_tiles, n_blocks, excluded, softcap, width, capped, described, block_v, block_r, block_k, warm, held,
                n_parts,
            )  # fmt: skip
    else:
        _see(
            tl.program_id(0), x, weight, scales_ptr, ids_ptr, seen_ptr, places_ptr, logits_ptr, logits_row, n_rows,
            n_entries, n_tiles, n_blocks, excluded, softcap, width, capped, described, block_v, block_r, block_k, warm,
            held, n_parts,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_rows", "excluded"])
def _join_kernel(
    scales_ptr: tl.tensor, uniforms_ptr: tl.tensor, ids_ptr: tl.tensor, seen_ptr: tl.tensor, tokens_ptr: tl.tensor,
    logprobs_ptr: tl.tensor, entropy_ptr: tl.tensor, places_ptr: tl.tensor, rests_ptr: tl.tensor, n_rows: tl.tensor,
    n_entries: tl.tensor, excluded: tl.tensor, warm: tl.constexpr, n_parts: tl.constexpr, n_blocks: tl.constexpr,
    block_b: tl.constexpr, block_r: tl.constexpr,
) -> None:  # fmt: skip
    """What the blocks of a few rows amount to. With `warm`, of the rows with a scale: in which block the draw falls
    (-1: nowhere); rests [3, N] are how much of that block's sum lies before it, the block's largest logit, and the
    logsumexp."""
    r, b = tl.program_id(0) * block_r + tl.arange(0, block_r), tl.arange(0, block_b)
    inside = (b < n_blocks)[:, None] & (r < n_rows)[None, :]
    at, size = b.to(tl.int64)[:, None] * n_rows + r[None, :], n_blocks * n_rows.to(tl.int64)
    most = tl.load(seen_ptr + at, mask=inside, other=HIDDEN)
    top = tl.max(most, 0)
    below = most - top[None, :]
    first = tl.min(tl.where(most == top[None, :], tl.load(ids_ptr + at, mask=inside, other=n_entries), n_entries), 0)
    part = tl.load(seen_ptr + size + at, mask=inside, other=0.0)
    tilt = tl.load(seen_ptr + 2 * size + at, mask=inside, other=0.0)
    share = tl.exp(below)
    total = tl.sum(part * share, 0)
    norm = tl.log(total)
    spoilt = (excluded == 0).to(tl.int32)
    known = (first < n_entries) & (first != excluded)  # not where all is NaN
    tl.store(tokens_ptr + r, tl.where(known, first, spoilt).to(tl.int64), mask=r < n_rows)
    tl.store(logprobs_ptr + r, -norm, mask=r < n_rows)
    tl.store(entropy_ptr + r, norm - tl.sum(share * (tilt + part * below), 0) / total, mask=r < n_rows)
    if warm:
        scale = tl.load(scales_ptr + r, mask=r < n_rows, other=0.0)
        weight = tl.zeros((block_b, block_r), tl.float32)
        for i in tl.static_range(n_parts):
            weight += tl.load(seen_ptr + (3 + i) * size + at, mask=inside, other=0.0)
        fall = tl.exp(below * scale[None, :])
        weight *= fall
        weight = tl.where((weight > 0) & (scale > 0)[None, :], weight, 0.0)
        passed = tl.cumsum(weight, 0)
        wanted = tl.load(uniforms_ptr + r, mask=r < n_rows, other=0.0) * tl.sum(weight, 0)
        place = _first_above(passed, weight, wanted[None, :], b[:, None], block_b)
        here = b[:, None] == place[None, :]
        rest = (wanted - tl.sum(tl.where(here, passed - weight, 0.0), 0)) / tl.sum(tl.where(here, fall, 0.0), 0)
        tl.store(places_ptr + r, place, mask=r < n_rows)
        tl.store(rests_ptr + r, rest, mask=r < n_rows)
        tl.store(rests_ptr + n_rows + r, tl.sum(tl.where(here, most, 0.0), 0), mask=r < n_rows)
        tl.store(rests_ptr + 2 * n_rows + r, top + norm, mask=r < n_rows)


@triton.jit
def _first_above(
    passed: tl.tensor, weight: tl.tensor, wanted: tl.tensor, place: tl.tensor, n: tl.constexpr
) -> tl.tensor:
    """The first place along axis 0 with a weight where what has `passed` exceeds what is wanted; the last with one
    where rounding leaves none; -1 where none has a weight."""
    first = tl.min(tl.where((passed > wanted) & (weight > 0), place, n), 0)
    return tl.minimum(first, tl.max(tl.where(weight > 0, place, -1), 0))


@triton.jit(do_not_specialize=["n_rows", "excluded"])
def _pick_kernel(
    x_ptr: tl.tensor, weight_ptr: tl.tensor, scales_ptr: tl.tensor, seen_ptr: tl.tensor, places_ptr: tl.tensor,
    rests_ptr: tl.tensor, tokens_ptr: tl.tensor, logprobs_ptr: tl.tensor, n_rows: tl.tensor, n_entries: tl.tensor,
    n_blocks: tl.tensor, excluded: tl.tensor, softcap: tl.tensor, width: tl.constexpr, capped: tl.constexpr,
    block_v: tl.constexpr, n_parts: tl.constexpr, block_k: tl.constexpr,
) -> None:  # fmt: skip
    """The id of a row within the block in which its draw falls: first the part, then of its entries one."""
    row, size = tl.program_id(0).to(tl.int64), n_rows.to(tl.int64) * n_blocks
    block = tl.load(places_ptr + row)
    if block >= 0:
        rest, most = tl.load(rests_ptr + row), tl.load(rests_ptr + n_rows + row)
        norm = tl.load(rests_ptr + 2 * n_rows + row)
        p = tl.arange(0, n_parts)
        sums = tl.load(seen_ptr + (3 + p) * size + block * n_rows + row)
        passed = tl.cumsum(sums, 0)
        part = _first_above(passed, sums, rest, p, n_parts)
        rest -= tl.sum(tl.where(p == part, passed - sums, 0.0), 0)
        n_own: tl.constexpr = block_v // n_parts
        v, k = block * block_v + part * n_own + tl.arange(0, n_own), tl.arange(0, block_k)
        total = tl.zeros((n_own, block_k), tl.float32)
        at = weight_ptr + v.to(tl.int64)[:, None] * width + k[None, :]
        for begin in tl.range(0, width, block_k):
            inside = k < width - begin
            x = tl.load(x_ptr + row * width + begin + k, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(at + begin, mask=(v < n_entries)[:, None] & inside[None, :], other=0.0).to(tl.float32)
            total += weight * x[None, :]
        logits = tl.sum(total, 1)
        if capped:
            logits = _capped(logits, softcap)
        share = tl.exp((logits - most) * tl.load(scales_ptr + row))
        share = tl.where((v < n_entries) & (v != excluded) & (share > 0), share, 0.0)
        i = tl.arange(0, n_own)
        found = _first_above(tl.cumsum(share, 0), share, rest, i, n_own)
        if found >= 0:
            tl.store(tokens_ptr + row, (block * block_v + part * n_own + found).to(tl.int64))
            tl.store(logprobs_ptr + row, tl.sum(tl.where(i == found, logits, 0.0), 0) - norm)
