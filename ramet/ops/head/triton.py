"""Reading the vocabulary on CUDA: a dot product for each column that is asked for, and the logsumexp over the whole
vocabulary, in blocks of entries, of the rows that need it; nothing for the others.

Both work from lists that `plan` makes, of exact lengths: reading stands behind the recorded part of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ramet.ops.head import reference
from ramet.ops.head.reference import Vocabulary
from ramet.round import Capacity, Round, Stream
from ramet.tree import IntArray

draw = reference.draw  # plain torch everywhere
sample = reference.sample


def prepare(weight: torch.Tensor) -> Vocabulary:
    """As `reference.prepare`. The weight is read as it is."""
    return Vocabulary(weight.detach().contiguous())


def plan(packed: Round) -> dict[str, IntArray]:
    """head/rows [C]: which row of the hidden states each column is of. head/normalized [M]: the rows that need their
    logsumexp; head/slots [R]: which of these each read is of, -1 where of none."""
    normalize, reads = packed["normalize"], packed["read_index"]
    slots = np.where(normalize != 0, np.cumsum(normalize != 0) - 1, -1)
    return {
        "head/rows": np.repeat(reads, np.diff(packed["offsets"])),
        "head/normalized": np.flatnonzero(normalize).astype(np.int32),
        "head/slots": slots[reads].astype(np.int32),
    }


def room(_: Capacity) -> dict[str, int]:
    """Nothing: the lists are never padded."""
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
    constants, options = _combine_launch(1940)
    yield _combine_kernel, _types(_combine_kernel, "bf16", constants), constants, options


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
    """The types of a kernel's arguments, told by their names."""
    kinds = {"x_ptr": f"*{dtype}", "weight_ptr": f"*{dtype}", "softcap": "fp32"}
    kinds |= dict.fromkeys(("rows_ptr", "columns_ptr", "slots_ptr"), "*i32") | dict.fromkeys(constants, "constexpr")
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
