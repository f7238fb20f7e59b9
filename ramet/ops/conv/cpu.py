"""The causal convolution on the CPU: the compiled kernel, or the reference's torch where it does not fit."""

from __future__ import annotations

import ctypes

import torch

from ramet.cache.state import Recurrent
from ramet.ops.conv import reference
from ramet.ops.native import Library, library
from ramet.round import Stream


def causal_conv(x: torch.Tensor, weight: torch.Tensor, stream: Stream, states: Recurrent | None) -> torch.Tensor:
    """As `reference.causal_conv`. Rows of x may lie apart.

    bfloat16 and float32 with a width of 2 to 4 and a multiple of 16 channels go through the compiled kernel. A row's
    bits depend on the W rows of its path alone.
    """
    found = library()
    if found is None or x.dtype not in (torch.bfloat16, torch.float32) or not takes(*weight.shape):
        return reference.causal_conv(x, weight, stream, states)
    return compiled(found, x, weight, stream, states)


def takes(n_channels: int, width: int) -> bool:
    """Whether the compiled kernel knows convolutions of this size."""
    return n_channels % 16 == 0 and 2 <= width <= 4


class _Call(ctypes.Structure):
    """`Call` of native/conv.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "x", "weight", "out", "window", "starts", "lengths", "parents", "from_", "to",
        )),
        *((name, ctypes.c_int64) for name in ("x_stride", "slot_stride")),
        *((name, ctypes.c_int32) for name in ("n_pieces", "width", "n_channels", "is_bf16", "n_threads")),
    ]  # fmt: skip


def compiled(
    found: Library, x: torch.Tensor, weight: torch.Tensor, stream: Stream, states: Recurrent | None
) -> torch.Tensor:
    """As `causal_conv`, by the kernel in `found`."""
    x = x if x.stride(1) == 1 else x.contiguous()
    by_age = weight.float().t().contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    call = _Call(
        x=x.data_ptr(), weight=by_age.data_ptr(), out=out.data_ptr(), x_stride=x.stride(0),
        starts=stream.piece_starts.data_ptr(), lengths=stream.piece_lengths.data_ptr(),
        parents=stream.piece_parents.data_ptr(), from_=stream.piece_from.data_ptr(), to=stream.piece_to.data_ptr(),
        n_pieces=len(stream.piece_starts), width=weight.shape[1], n_channels=x.shape[1],
        is_bf16=x.dtype == torch.bfloat16, n_threads=torch.get_num_threads(),
    )  # fmt: skip
    if states is None:
        assert not bool((stream.piece_from >= 0).any() | (stream.piece_to >= 0).any())
    else:
        assert states.window.dtype == x.dtype
        assert states.window[0].is_contiguous()
        assert int(torch.stack((stream.piece_from, stream.piece_to)).max()) < len(states.window)
        call.window, call.slot_stride = states.window.data_ptr(), states.window.stride(0)
    found.functions.ramet_causal_conv(ctypes.byref(call))
    return out
