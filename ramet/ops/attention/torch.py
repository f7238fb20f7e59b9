"""Attention on the CPU in plain torch, faster than the reference: segments that differ in nothing but their rows are
one batch. Equal to rounding; no bits are promised."""

from __future__ import annotations

import torch
from torch.nn import functional

from ramet.cache.kv import KeyValue
from ramet.ops.attention import reference
from ramet.ops.shape import takes_all
from ramet.round import Queries, Stream
from ramet.tree import MAX_ANCESTORS

keep, takes = reference.keep, takes_all


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
    """As `reference.attention`. Forks are not looked at: they move no key into or out of sight."""
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
        """Keys, values and places of what segment s sees above itself."""
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
