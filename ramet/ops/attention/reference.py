"""Attention over a stream of trees, in plain torch: the specification of the other files here.

Each query row sees, in this order: the rows of its unit's context (pages), its ancestors' segments
whole, and of its own segment the rows that `block` allows. `window` w > 0 hides keys at a distance
of w positions or more from the row that begins the query's block in its segment: with block 1 from
the query itself (w keys counting its own, as in transformers), with WHOLE from the segment's first
row, so that all its rows see the same (as transformers' DiffusionGemma). Blocks and segments begin
where they would if nothing were cut: at a segment's anchor. What a row sees depends on places in
paths alone; the stream's positions, which may differ within WHOLE segments, are not used here
(kernels may use them for segments that are not WHOLE).

The stream's context_forks change nothing of that, and are not used here. With the anchors they say where the
segments began whose rows lie in pages, so that a kernel which sums blocks of keys can count them off from there: a
*run* is the keys of one segment, of the request's tree as it would be in one piece. A context is cut into runs by its
forks; a root with anchor < origin continues the last of them, which then lies in pages and stream; every other segment
is a run of its own. Summed so, a row's bits are the same however its path was cut into rounds.
"""

from __future__ import annotations

import torch

from ramet.cache.kv import KeyValue
from ramet.ops.shape import takes_all
from ramet.round import Queries, Stream

takes = takes_all


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
    """q [N, Hq, D], k and v [T, Hk, D] (Hq a multiple of Hk; query head h uses key head h // (Hq // Hk)).

    Returns [N, Hq, D] in q's dtype; sums in float32 (float64 inputs stay float64).
    """
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    wide = torch.promote_types(q.dtype, torch.float32)
    for s in range(len(stream.starts)):
        lo, hi = int(queries.bounds[s]), int(queries.bounds[s + 1])
        if lo == hi:
            continue
        keys, values, at, own = _sources(s, k, v, stream, pages)
        rows = queries.rows[lo:hi] + (stream.origins[s] - stream.starts[s])
        seen = _visible(rows, at, own, int(stream.blocks[s]), int(stream.anchors[s]), window)
        keys, values = (x.repeat_interleave(group, 1).to(wide) for x in (keys, values))
        scores = torch.einsum("nhd,mhd->hnm", q[lo:hi].to(wide), keys) * scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[lo:hi] = torch.einsum("hnm,mhd->nhd", weights, values).to(q.dtype)
    return out


def keep(pages: KeyValue, k: torch.Tensor, v: torch.Tensor, stream: Stream) -> None:
    """Store the rows of k and v [T, Hk, D] that the stream says in their slots of the pages."""
    pages.write(k, v, stream.kept_rows, stream.kept_slots)


def _sources(
    s: int, k: torch.Tensor, v: torch.Tensor, stream: Stream, pages: KeyValue | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values, places [M] of all that segment s may see, and whether each is of s itself."""
    path = [s]
    while int(stream.parents[path[0]]) >= 0:
        path.insert(0, int(stream.parents[path[0]]))
    spans = [slice(int(stream.starts[p]), int(stream.starts[p] + stream.lengths[p])) for p in path]
    keys, values = [k[x] for x in spans], [v[x] for x in spans]
    at = [torch.arange(x.stop - x.start, device=k.device) + stream.origins[p] for x, p in zip(spans, path, strict=True)]
    context = int(stream.contexts[s])
    if context >= 0:
        assert pages is not None
        lo, hi = int(stream.context_offsets[context]), int(stream.context_offsets[context + 1])
        own, length = stream.context_pages[lo:hi].long(), int(stream.context_lengths[context])
        keys.insert(0, pages.keys[own].flatten(0, 1)[:length])
        values.insert(0, pages.values[own].flatten(0, 1)[:length])
        at.insert(0, torch.arange(length, dtype=torch.int32, device=k.device))
    places = torch.cat(at)
    is_own = torch.zeros(len(places), dtype=torch.bool, device=k.device)
    is_own[len(places) - int(stream.lengths[s]) :] = True
    return torch.cat(keys), torch.cat(values), places, is_own


def _visible(
    rows: torch.Tensor, at: torch.Tensor, own: torch.Tensor, block: int, anchor: int, window: int
) -> torch.Tensor:
    """[N, M]: which keys each row sees."""
    seen = ~own[None, :] | (at[None, :] // block <= rows[:, None] // block)
    if window > 0:
        begins = (rows // block * block).clamp(min=anchor)
        seen = seen & (begins[:, None] - at[None, :] < window)
    return seen
