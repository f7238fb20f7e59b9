"""Attention on the CPU by the compiled kernel."""

from __future__ import annotations

import ctypes
from ctypes import c_int64

import torch

from ramet.cache.kv import KeyValue
from ramet.ops.native import IS_BF16, NativeOp, pointer
from ramet.ops.shape import OpShape
from ramet.round import Queries, Stream

_MAX_HEAD = 512  # a thread's tile of rows and a block of keys fit its second cache


class AttentionCall(ctypes.Structure):
    """`Call` of native/attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "k", "v", "out", "page_keys", "page_values",
            "positions", "starts", "lengths", "parents", "blocks", "contexts", "origins", "anchors",
            "context_pages", "context_offsets", "context_lengths", "context_forks", "context_fork_offsets",
            "rows", "bounds",
        )),
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, ctypes.c_int32) for name in (
            "n_segments", "n_contexts", "n_heads", "n_kv_heads", "head_dim", "page_size", "window", "is_bf16",
            "n_threads",
        )),
        ("scale", ctypes.c_float),
    ]  # fmt: skip


_STREAM = (
    "positions", "starts", "lengths", "parents", "blocks", "contexts", "origins", "anchors",
    "context_pages", "context_offsets", "context_lengths", "context_forks", "context_fork_offsets",
)  # fmt: skip


class NativeAttention(NativeOp):
    """In bfloat16 and float32, with a head size that is a multiple of 16, up to 512.

    A row's bits depend on its own path alone: not on what shares the round, which other rows are queries, the number of
    threads, page sizes, or whether its segment was computed in one piece, in chunks or on top of earlier pages (the
    stream's anchors and forks say where segments began).
    """

    def takes(self, shape: OpShape) -> str | None:
        """See `Variant`."""
        fits = shape.head_dim % 16 == 0 and shape.head_dim <= _MAX_HEAD
        return super().takes(shape) if fits else f"heads of {shape.head_dim}"

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        stream: Stream,
        queries: Queries,
        pages: KeyValue | None,
        *,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        """As `reference.attention`. Rows of q, k and v may lie apart (views of a merged projection)."""
        assert scale > 0
        assert q.dtype == k.dtype == v.dtype
        assert len(stream.context_lengths) == 0 or pages is not None
        q, k, v = (_rows(x) for x in (q, k, v))
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        call = AttentionCall(
            q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), out=out.data_ptr(),
            q_stride=q.stride(0), k_stride=k.stride(0), v_stride=v.stride(0),
            rows=queries.rows.data_ptr(), bounds=queries.bounds.data_ptr(),
            n_segments=len(stream.starts), n_contexts=len(stream.context_lengths),
            n_heads=q.shape[1], n_kv_heads=k.shape[1], head_dim=q.shape[2], window=window, scale=scale,
            is_bf16=IS_BF16[q.dtype], n_threads=torch.get_num_threads(),
            **{name: getattr(stream, name).data_ptr() for name in _STREAM},
        )  # fmt: skip
        if pages is not None:
            assert pages.keys.is_contiguous()
            assert pages.values.is_contiguous()
            assert pages.keys.dtype == pages.values.dtype == q.dtype
            assert len(stream.context_pages) == 0 or int(stream.context_pages.max()) < len(pages.keys)
            call.page_keys, call.page_values = pages.keys.data_ptr(), pages.values.data_ptr()
            call.page_size = pages.keys.shape[1]
        self._functions.ramet_attention(ctypes.byref(call))
        return out

    def keep(self, pages: KeyValue, k: torch.Tensor, v: torch.Tensor, stream: Stream) -> None:
        """As `reference.keep`. Rows of k and v may lie apart."""
        assert pages.keys.is_contiguous()
        assert pages.values.is_contiguous()
        assert pages.keys.dtype == pages.values.dtype == k.dtype == v.dtype
        k, v, size, n_slots = _rows(k), _rows(v), k.dtype.itemsize, pages.keys.shape[0] * pages.keys.shape[1]
        n_bad = self._functions.ramet_keep(
            pointer(k), c_int64(k.stride(0) * size), pointer(v), c_int64(v.stride(0) * size), len(k),
            pointer(pages.keys), pointer(pages.values), c_int64(n_slots), pointer(stream.kept_rows),
            pointer(stream.kept_slots), len(stream.kept_rows), c_int64(k.shape[1] * k.shape[2] * size),
            torch.get_num_threads(),
        )  # fmt: skip
        assert n_bad == 0


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
