"""The causal convolution in Triton: rows are gathered from where `plan` says, in tiles of rows and channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from ramet.cache.state import Recurrent
from ramet.ops.conv.plan import plan, room
from ramet.round import Stream

__all__ = ["causal_conv", "plan", "room", "variants"]

_COPIERS = 4  # programs a block of channels that write windows
_OPTIONS = {"num_warps": 4}


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
    window = x[None, :0] if states is None else states.window
    assert window.dtype == x.dtype
    assert window.stride(2) == 1
    rows, channels = _tile(x.dtype, C)
    grid = (triton.cdiv(C, channels), triton.cdiv(T, rows) + (_COPIERS if states is not None else 0))
    _conv[grid](
        x, weight, stream.work["conv/before"], stream.work["conv/after"], window, out, T, x.stride(0), *weight.stride(),
        window.stride(0), window.stride(1), C=C, W=W, R=rows, BC=channels, **_OPTIONS,
    )  # fmt: skip
    return out


def _tile(dtype: torch.dtype, n_channels: int) -> tuple[int, int]:
    """Rows and channels: 16 bytes a thread and row, and few enough rows that small rounds fill a card too."""
    return 16, min(32 * 16 // dtype.itemsize, max(16, triton.next_power_of_2(n_channels)))


@triton.jit(do_not_specialize=["n_rows"])
def _conv(
    x, weight, before, after, window, out, n_rows, x_stride, channel_stride, tap_stride, slot_stride, row_stride,
    C: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    c, block = tl.program_id(0) * BC + tl.arange(0, BC), tl.program_id(1)
    n_blocks = tl.cdiv(n_rows, R)
    if block < n_blocks:
        rows = block * R + tl.arange(0, R)
        own = rows < n_rows
        total = tl.zeros((R, BC), tl.float32)
        for j in tl.static_range(W):
            source = rows
            if j > 0:
                source = tl.load(before + rows * (W - 1) + (j - 1), own, -1)
            taps = tl.load(weight + c * channel_stride + (W - 1 - j) * tap_stride, c < C, 0.0).to(tl.float32)
            inputs = _inputs(x, window, source, own, c, x_stride, slot_stride, row_stride, C, W, BC)
            total += inputs.to(tl.float32) * taps[None, :]
        total = total / (1.0 + tl.exp(-total))
        _store(out + rows.to(tl.int64) * C, own, c, total.to(out.dtype.element_ty), C, BC)
    elif W > 1:
        n_copies = tl.load(after) * (W - 1)
        for at in range((block - n_blocks) * R, n_copies, (tl.num_programs(1) - n_blocks) * R):
            copies = at + tl.arange(0, R)
            own = copies < n_copies
            entry, place = after + 1 + copies // (W - 1) * W, copies % (W - 1)
            slot, source = tl.load(entry, own, 0), tl.load(entry + 1 + place, own, -1)
            inputs = _inputs(x, window, source, own, c, x_stride, slot_stride, row_stride, C, W, BC)
            _store(window + slot.to(tl.int64) * slot_stride + place * row_stride, own, c, inputs, C, BC)


@triton.jit
def _inputs(
    x, window, source, own, c, x_stride, slot_stride, row_stride, C: tl.constexpr, W: tl.constexpr, BC: tl.constexpr
):
    """[R, BC], from rows of the stream, from windows, or zeros: see plan.py."""
    begin = x + source.to(tl.int64) * x_stride
    if W > 1:
        held = -2 - source
        held = window + (held // (W - 1)).to(tl.int64) * slot_stride + held % (W - 1) * row_stride
        begin = tl.where(source >= 0, begin, held)
    return tl.load(begin[:, None] + c[None, :], _mask(own & (source != -1), c, C, BC), 0.0)


@triton.jit
def _store(begin, own, c, value, C: tl.constexpr, BC: tl.constexpr):
    tl.store(begin[:, None] + c[None, :], value, _mask(own, c, C, BC))


@triton.jit
def _mask(own, c, C: tl.constexpr, BC: tl.constexpr):
    mask = own[:, None]
    if C % BC != 0:
        mask = mask & (c < C)[None, :]
    return mask


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """The kernel as Qwen3.5 uses it, for tests that compile."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        for C in (6144, 8192):
            rows, channels = _tile(dtype, C)
            constants = {"C": C, "W": 4, "R": rows, "BC": channels}
            types = dict.fromkeys(("x", "window", "out"), f"*{name}") | {"weight": "*fp32"}
            types |= {"before": "*i32", "after": "*i32"} | dict.fromkeys(constants, "constexpr")
            yield _conv, {each: types.get(each, "i32") for each in _conv.arg_names}, constants, _OPTIONS
