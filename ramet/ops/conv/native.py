"""The causal convolution on the CPU by the compiled kernel."""

from __future__ import annotations

import ctypes

import torch

from ramet.cache.state import Recurrent
from ramet.ops.native import IS_BF16, NativeOp
from ramet.ops.shape import OpShape
from ramet.round import Stream


class ConvCall(ctypes.Structure):
    """`Call` of native/conv.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "x", "weight", "out", "window", "starts", "lengths", "parents", "from_", "to",
        )),
        *((name, ctypes.c_int64) for name in ("x_stride", "slot_stride")),
        *((name, ctypes.c_int32) for name in ("n_pieces", "width", "n_channels", "is_bf16", "n_threads")),
    ]  # fmt: skip


class NativeConv(NativeOp):
    """In bfloat16 and float32, widths of 2 to 4, multiples of 16 channels. A row's bits depend on the W rows of its
    path."""

    def takes(self, shape: OpShape) -> str | None:
        """See `Variant`."""
        fits = shape.n_channels % 16 == 0 and shape.conv_width in (0, 2, 3, 4)
        wanted = f"a convolution of width {shape.conv_width} over {shape.n_channels} channels"
        return super().takes(shape) if fits else wanted

    def causal_conv(
        self, x: torch.Tensor, weight: torch.Tensor, stream: Stream, states: Recurrent | None
    ) -> torch.Tensor:
        """As `reference.causal_conv`. Rows of x may lie apart."""
        x = x if x.stride(1) == 1 else x.contiguous()
        by_age = weight.float().t().contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        call = ConvCall(
            x=x.data_ptr(), weight=by_age.data_ptr(), out=out.data_ptr(), x_stride=x.stride(0),
            starts=stream.piece_starts.data_ptr(), lengths=stream.piece_lengths.data_ptr(),
            parents=stream.piece_parents.data_ptr(), from_=stream.piece_from.data_ptr(), to=stream.piece_to.data_ptr(),
            n_pieces=len(stream.piece_starts), width=weight.shape[1], n_channels=x.shape[1],
            is_bf16=IS_BF16[x.dtype], n_threads=torch.get_num_threads(),
        )  # fmt: skip
        if states is None:
            assert not bool((stream.piece_from >= 0).any() | (stream.piece_to >= 0).any())
        else:
            assert states.window.dtype == x.dtype
            assert states.window[0].is_contiguous()
            assert int(torch.stack((stream.piece_from, stream.piece_to)).max()) < len(states.window)
            call.window, call.slot_stride = states.window.data_ptr(), states.window.stride(0)
        self._functions.ramet_causal_conv(ctypes.byref(call))
        return out
