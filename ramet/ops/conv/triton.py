"""The causal convolution in Triton: a warp walks down some rows of its channels with the inputs before them in
registers. Where a piece begins, the work list has the inputs before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from ramet.cache.state import Recurrent
from ramet.ops.conv.lists import room
from ramet.ops.norm.triton import times_logistic
from ramet.ops.shape import takes_all
from ramet.round import Stream

__all__ = ["causal_conv", "room", "takes", "variants"]

_COPIERS = 8  # programs a block of channels that write windows
_ROWS = 8  # of a program, at most 32; it reads W - 1 rows and its channels' taps besides
_OPTIONS = {"num_warps": 1}


takes = takes_all


def causal_conv(x: torch.Tensor, weight: torch.Tensor, stream: Stream, states: Recurrent | None) -> torch.Tensor:
    """As `reference.causal_conv`, for bfloat16 and float32. Rows of x may lie apart.

    A row's bits depend on the W rows of its path alone. weight is read fastest where its channels lie side by side, as
    in `taps.t()` of a contiguous [W, C].
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    T, C, W = len(x), x.shape[1], weight.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if T == 0:
        return out
    window = x[:0] if states is None else states.window
    assert window.dtype == x.dtype
    assert window.is_contiguous()
    channels, copiers = _channels(x.dtype, C), 0 if states is None else _COPIERS
    grid = (triton.cdiv(C, channels), copiers + triton.cdiv(T, _ROWS))
    _conv[grid](
        x, weight, stream.work["conv/before"], stream.work["conv/after"], window, out, T, x.stride(0), *weight.stride(),
        C=C, W=W, R=_ROWS, BC=channels, COPIERS=copiers, **_OPTIONS,
    )  # fmt: skip
    return out


def _channels(dtype: torch.dtype, n_channels: int) -> int:
    """Channels of a program: 16 bytes a thread and row."""
    return min(32 * 16 // dtype.itemsize, max(16, int(triton.next_power_of_2(n_channels))))


@triton.jit(do_not_specialize=["n_rows"])
def _conv(
    x, weight, before, after, window, out, n_rows, x_stride, channel_stride, tap_stride,
    C: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BC: tl.constexpr, COPIERS: tl.constexpr,
):  # fmt: skip
    c, block = tl.program_id(0) * BC + tl.arange(0, BC), tl.program_id(1) - COPIERS
    if block < 0:
        _keep(x, after, window, block + COPIERS, c, x_stride, C, W, COPIERS)
    else:
        taps = weight + c * channel_stride
        _walk(x, taps, before, window, out, n_rows, block * R, c, x_stride, tap_stride, C, W, R, BC)


@triton.jit
def _walk(
    x, weight, before, window, out, n_rows, first, c, x_stride, tap_stride,
    C: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Down R rows from `first` on."""
    n = tl.minimum(n_rows - first, R)
    at, to = x + first.to(tl.int64) * x_stride + c, out + first.to(tl.int64) * C + c
    held: tl.tuple = ()  # the inputs before a row, the newest first: guessed to be the rows before, for a start
    taps: tl.tuple = ()
    for j in tl.static_range(1, W):
        held += (tl.load(at - j * x_stride, _mask(first >= j, c, C, BC), 0.0).to(tl.float32),)
    for j in tl.static_range(W):
        taps += (tl.load(weight + (W - 1 - j) * tap_stride, _mask(True, c, C, BC), 0.0).to(tl.float32),)
    inputs: tl.tuple = ()
    for k in tl.static_range(R):  # the last of n once more instead of those behind it: no load then depends on n
        inputs += (tl.load(at + tl.minimum(k, n - 1) * x_stride, _mask(True, c, C, BC), 0.0),)
    tl.debug_barrier()  # the assembler would put these loads off until behind what waits for the list
    begins = _begins(before, first, n, W, R)
    for k in tl.static_range(R):
        if (begins >> k) & 1 != 0:
            held = _above(x, window, before + (first + k) * (W - 1), c, x_stride, C, W, BC)
        seen: tl.tuple = (inputs[k].to(tl.float32),)
        seen += held
        total = seen[0] * taps[0]
        for j in tl.static_range(1, W):  # of two products the compiler could fuse either, and not the same each row
            total = tl.fma(seen[j], taps[j], total)
        value = times_logistic(total, total).to(out.dtype.element_ty)
        tl.store(to + k * C, value, _mask(k < n, c, C, BC))
        held = seen[: W - 1]


@triton.jit
def _begins(before, first, n, W: tl.constexpr, N: tl.constexpr):
    """Bit k: whether row first + k must look up its predecessors in the list, since they are not the row above and that
    row's predecessors: a piece begins there. The first row looks them up if one differs from the guess."""
    k = tl.arange(0, N)
    asks, padding = k < 0, k >= 0
    for j in tl.static_range(1, W):
        guess = first + k - j
        source = tl.load(before + (first + k) * (W - 1) + (j - 1), k < n, guess)
        asks = asks | ((source != guess) & ((k == 0) | (j == 1)))
        padding = padding & (source == 0)
    if W > 2:  # two inputs are never the same row, but for rows of padding, which would ask one after the other
        asks = asks & (padding == 0)
    return tl.sum(tl.where(asks, 1 << k, 0))


@triton.jit
def _above(x, window, before, c, x_stride, C: tl.constexpr, W: tl.constexpr, BC: tl.constexpr):
    """The W - 1 inputs before a row, the newest first, from where its entries of the list say."""
    sources: tl.tuple = ()
    held: tl.tuple = ()
    for j in tl.static_range(W - 1):
        sources += (tl.load(before + j),)
    for j in tl.static_range(W - 1):
        at = _source(x, window, sources[j], x_stride, C) + c
        held += (tl.load(at, _mask(sources[j] != -1, c, C, BC), 0.0).to(tl.float32),)
    return held


@triton.jit
def _source(x, window, source, x_stride, C: tl.constexpr):
    """Where an input begins: row `source` of the stream, or row -2 - source of all windows. See lists.py."""
    return tl.where(source >= 0, x + source.to(tl.int64) * x_stride, window + (-2 - source).to(tl.int64) * C)


@triton.jit
def _keep(x, after, window, program, c, x_stride, C: tl.constexpr, W: tl.constexpr, COPIERS: tl.constexpr):
    """Write the windows behind pieces whose state is kept, a few rows of them at a time."""
    if W > 1:
        N: tl.constexpr = 8
        n_copies = tl.load(after) * (W - 1)
        for begin in range(program * N, n_copies, COPIERS * N):
            copies = begin + tl.arange(0, N)
            own = copies < n_copies
            entry, place = after + 1 + copies // (W - 1) * W, copies % (W - 1)
            slot, source = tl.load(entry, own, 0), tl.load(entry + 1 + place, own, -1)
            at = _source(x, window, source, x_stride, C)[:, None] + c[None, :]
            inputs = tl.load(at, (source != -1)[:, None] & (c < C)[None, :], 0.0)
            to = window + (slot * (W - 1) + place).to(tl.int64) * C
            tl.store(to[:, None] + c[None, :], inputs, own[:, None] & (c < C)[None, :])


@triton.jit
def _mask(there, c, C: tl.constexpr, BC: tl.constexpr):
    mask = there
    if C % BC != 0:
        mask = mask & (c < C)
    return mask


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """The kernel as Qwen3.5 uses it, for tests that compile."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        for C in (6144, 8192):
            channels = _channels(dtype, C)
            constants = {"channel_stride": 1, "C": C, "W": 4, "R": _ROWS, "BC": channels, "COPIERS": _COPIERS}
            types = dict.fromkeys(("x", "window", "out"), f"*{name}") | {"weight": "*fp32"}
            types |= {"before": "*i32", "after": "*i32"} | dict.fromkeys(constants, "constexpr")
            yield _conv, {each: types.get(each, "i32") for each in _conv.arg_names}, constants, _OPTIONS
