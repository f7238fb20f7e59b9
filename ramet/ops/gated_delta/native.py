"""The gated delta rule on the CPU by the compiled kernel."""

from __future__ import annotations

import ctypes

import torch

from ramet.cache.state import Recurrent
from ramet.ops.gated_delta.reference import CHUNK
from ramet.ops.native import IS_BF16, NativeOp
from ramet.ops.shape import OpShape
from ramet.round import Stream


class DeltaCall(ctypes.Structure):
    """`Call` of native/delta.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "k", "v", "gate", "out", "a", "b", "rate", "dt_bias", "weight", "states", "starts", "lengths",
            "parents", "from_", "to",
        )),
        *((name, ctypes.c_int64) for name in (
            "q_stride", "k_stride", "v_stride", "gate_stride", "a_stride", "b_stride", "slot_stride",
        )),
        *((name, ctypes.c_int32) for name in (
            "n_pieces", "n_key_heads", "n_heads", "key_dim", "value_dim", "chunk", "is_bf16", "n_threads",
        )),
        ("eps", ctypes.c_float),
    ]  # fmt: skip


class NativeDelta(NativeOp):
    """In bfloat16 and float32, with head sizes that are multiples of 16, and up to 16 value heads a key head.

    A piece's bits depend on its rows and the state that it begins from alone, and a piece cut at a multiple of CHUNK
    has the bits of the uncut one.
    """

    def takes(self, shape: OpShape) -> str | None:
        """See `Variant`."""
        sizes_fit = shape.key_dim % 16 == 0 and shape.value_dim % 16 == 0
        if sizes_fit and shape.n_value_heads <= 16 * shape.n_key_heads:
            return super().takes(shape)
        keys, values = f"{shape.n_key_heads} of {shape.key_dim}", f"{shape.n_value_heads} of {shape.value_dim}"
        return f"a delta rule with {keys} as key heads and {values} as value heads"

    def gated_delta(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        rate: torch.Tensor,
        dt_bias: torch.Tensor,
        stream: Stream,
        states: Recurrent | None,
        *,
        gate: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """As `reference.gated_delta`. Rows of q, k, v, a, b and gate may lie apart (views of a merged projection)."""
        assert q.dtype == k.dtype == v.dtype == gate.dtype
        q, k, v, gate = (_rows(x) for x in (q, k, v, gate))
        a, b = (x.float() if x.stride(1) == 1 else x.float().contiguous() for x in (a, b))
        rate, dt_bias, weight = (x.float().contiguous() for x in (rate, dt_bias, weight))
        out = torch.empty(v.shape, dtype=v.dtype)
        call = DeltaCall(
            q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), gate=gate.data_ptr(), out=out.data_ptr(), a=a.data_ptr(),
            b=b.data_ptr(), rate=rate.data_ptr(), dt_bias=dt_bias.data_ptr(), weight=weight.data_ptr(), eps=eps,
            starts=stream.piece_starts.data_ptr(), lengths=stream.piece_lengths.data_ptr(),
            parents=stream.piece_parents.data_ptr(), from_=stream.piece_from.data_ptr(), to=stream.piece_to.data_ptr(),
            q_stride=q.stride(0), k_stride=k.stride(0), v_stride=v.stride(0), gate_stride=gate.stride(0),
            a_stride=a.stride(0), b_stride=b.stride(0),
            n_pieces=len(stream.piece_starts), n_key_heads=k.shape[1], n_heads=v.shape[1], key_dim=k.shape[2],
            value_dim=v.shape[2], chunk=CHUNK, is_bf16=IS_BF16[q.dtype], n_threads=torch.get_num_threads(),
        )  # fmt: skip
        if states is None:
            assert not bool((stream.piece_from >= 0).any() | (stream.piece_to >= 0).any())
        else:
            assert states.state.dtype == torch.float32
            assert states.state[0].is_contiguous()
            assert int(torch.stack((stream.piece_from, stream.piece_to)).max()) < len(states.state)
            call.states, call.slot_stride = states.state.data_ptr(), states.state.stride(0)
        self._functions.ramet_gated_delta(ctypes.byref(call))
        return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
