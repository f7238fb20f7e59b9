"""Attention on the CPU: the compiled kernel, and a plain torch path where it does not fit."""

from __future__ import annotations

import ctypes
from ctypes import c_int64

import torch
from torch.nn import functional

from ramet.cache.kv import KeyValue
from ramet.ops.attention import reference
from ramet.ops.native import Library, library, pointer
from ramet.round import Queries, Stream
from ramet.tree import MAX_ANCESTORS

_MAX_HEAD = 512  # a thread's tile of rows and a block of keys fit its second cache


def attention(
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
    """As `reference.attention`. Rows of q, k and v may lie apart (views of a merged projection).

    bfloat16 and float32 with a head size that is a multiple of 16, up to 512, go through the compiled kernel, the rest
    through `plain`. In the compiled one a row's bits depend on its own path alone: not on what shares the round, which
    other rows are queries, the number of threads, page sizes, or whether its segment was computed in one piece, in
    chunks or on top of earlier pages (the stream's anchors and forks say where segments began). `plain` is equal to
    rounding and promises no bits.
    """
    found = library()
    if found is None or q.dtype not in (torch.bfloat16, torch.float32) or not takes(q.shape[2]):
        return plain(q, k, v, stream, queries, pages, scale=scale, window=window)
    return compiled(found, q, k, v, stream, queries, pages, scale=scale, window=window)


def keep(pages: KeyValue, k: torch.Tensor, v: torch.Tensor, stream: Stream) -> None:
    """As `reference.keep`. Rows of k and v may lie apart."""
    found, n = library(), len(stream.kept_rows)
    if found is None:
        return reference.keep(pages, k, v, stream)
    assert pages.keys.is_contiguous()
    assert pages.values.is_contiguous()
    assert pages.keys.dtype == pages.values.dtype == k.dtype == v.dtype
    k, v, size, n_slots = _rows(k), _rows(v), k.dtype.itemsize, pages.keys.shape[0] * pages.keys.shape[1]
    n_bad = found.functions.ramet_keep(
        pointer(k), c_int64(k.stride(0) * size), pointer(v), c_int64(v.stride(0) * size), len(k), pointer(pages.keys),
        pointer(pages.values), c_int64(n_slots), pointer(stream.kept_rows), pointer(stream.kept_slots), n,
        c_int64(k.shape[1] * k.shape[2] * size), torch.get_num_threads(),
    )  # fmt: skip
    assert n_bad == 0
    return None


def takes(head_dim: int) -> bool:
    """Whether the compiled kernel knows heads of this size."""
    return head_dim % 16 == 0 and head_dim <= _MAX_HEAD


class _Call(ctypes.Structure):
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


def compiled(
    found: Library,
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
    """As `attention`, by the kernel in `found`."""
    assert scale > 0
    assert len(stream.context_lengths) == 0 or pages is not None
    q, k, v = (_rows(x) for x in (q, k, v))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    call = _Call(
        q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), out=out.data_ptr(),
        q_stride=q.stride(0), k_stride=k.stride(0), v_stride=v.stride(0),
        rows=queries.rows.data_ptr(), bounds=queries.bounds.data_ptr(),
        n_segments=len(stream.starts), n_contexts=len(stream.context_lengths),
        n_heads=q.shape[1], n_kv_heads=k.shape[1], head_dim=q.shape[2], window=window, scale=scale,
        is_bf16=q.dtype == torch.bfloat16, n_threads=torch.get_num_threads(),
        **{name: getattr(stream, name).data_ptr() for name in _STREAM},
    )  # fmt: skip
    if pages is not None:
        assert pages.keys.is_contiguous()
        assert pages.values.is_contiguous()
        assert pages.keys.dtype == pages.values.dtype == q.dtype
        assert len(stream.context_pages) == 0 or int(stream.context_pages.max()) < len(pages.keys)
        call.page_keys, call.page_values = pages.keys.data_ptr(), pages.values.data_ptr()
        call.page_size = pages.keys.shape[1]
    found.functions.ramet_attention(ctypes.byref(call))
    return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def plain(
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
    """As `attention`, in torch: segments that differ in nothing but their rows are one batch.

    Forks are not looked at: they move no key into or out of sight."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    shape = _Shapes(stream, queries)
    for segments in shape.batches():
        first = segments[0]
        keys, values, at = shape.shared(first, k, v, pages)
        own = torch.stack([torch.arange(shape.starts[s], shape.starts[s] + shape.lengths[s]) for s in segments])
        rows = torch.stack([torch.arange(shape.bounds[s], shape.bounds[s + 1]) for s in segments])
        keys = torch.cat((keys.expand(len(segments), -1, -1, -1), k[own]), 1)
        values = torch.cat((values.expand(len(segments), -1, -1, -1), v[own]), 1)
        to_place = shape.origins[first] - shape.starts[first]
        position, at = queries.rows[rows[0]] + to_place, torch.cat((at, own[0] + to_place))
        seen = torch.ones(len(position), len(at), dtype=torch.bool)
        block = shape.blocks[first]
        seen[:, -own.shape[1] :] = at[None, -own.shape[1] :] // block <= position[:, None] // block
        if window > 0:
            begins = (position // block * block).clamp(min=shape.anchors[first])
            seen &= begins[:, None] - at[None, :] < window
        by_head = [x.transpose(1, 2) for x in (q[rows], keys, values)]
        out[rows] = functional.scaled_dot_product_attention(
            by_head[0], by_head[1], by_head[2], attn_mask=seen, scale=scale, enable_gqa=True
        ).transpose(1, 2)
    return out


class _Shapes:
    """A stream's segments as Python numbers."""

    def __init__(self, stream: Stream, queries: Queries) -> None:
        self.starts, self.lengths, self.parents, self.blocks, self.contexts, self.origins, self.anchors = (
            x.tolist()
            for x in (
                stream.starts, stream.lengths, stream.parents, stream.blocks, stream.contexts, stream.origins,
                stream.anchors,
            )
        )  # fmt: skip
        self.bounds, self.rows = queries.bounds.tolist(), queries.rows.tolist()
        self.stream = stream

    def batches(self) -> list[list[int]]:
        """The segments with queries, those of equal ancestors, sizes and query places together."""
        found: dict[object, list[int]] = {}
        for s, start in enumerate(self.starts):
            rows = self.rows[self.bounds[s] : self.bounds[s + 1]]
            if rows:
                places = tuple(r - start for r in rows)
                key = (self.parents[s], self.contexts[s], self.origins[s], self.lengths[s], self.blocks[s], places)
                found.setdefault(key, []).append(s)
        return list(found.values())

    def shared(
        self, s: int, k: torch.Tensor, v: torch.Tensor, pages: KeyValue | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """ConfigSchema, values and places of what segment s sees above itself."""
        path: list[int] = []
        while (above := self.parents[path[0] if path else s]) >= 0:
            path.insert(0, above)
        assert len(path) <= MAX_ANCESTORS
        spans = [slice(self.starts[p], self.starts[p] + self.lengths[p]) for p in path]
        keys, values = [k[:0], *(k[x] for x in spans)], [v[:0], *(v[x] for x in spans)]
        at = [torch.arange(0), *(torch.arange(self.lengths[p]) + self.origins[p] for p in path)]
        if self.contexts[s] >= 0:
            assert pages is not None
            lo, hi = self.stream.context_offsets[self.contexts[s] : self.contexts[s] + 2].tolist()
            held, length = self.stream.context_pages[lo:hi].long(), int(self.stream.context_lengths[self.contexts[s]])
            keys[0], values[0] = (x[held].flatten(0, 1)[:length] for x in (pages.keys, pages.values))
            at[0] = torch.arange(length)
        return torch.cat(keys), torch.cat(values), torch.cat(at)
