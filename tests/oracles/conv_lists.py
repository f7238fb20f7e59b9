"""The work lists of the causal convolution, in NumPy: what native/plan_recurrent.cpp is compared with."""

from __future__ import annotations

import numpy as np

from ramet.round import Round
from ramet.tree import IntArray


def plan(packed: Round, *, width: int) -> dict[str, IntArray]:
    """See ops/conv/lists.py."""
    n, starts, lengths = width - 1, packed["piece_starts"], packed["piece_lengths"]
    above = _above(packed, n)
    before = np.subtract(packed["every_rows"][:, None], np.arange(1, width), dtype=np.int32)
    for place in range(n):
        longer = np.flatnonzero(lengths > place)
        before[starts[longer] + place, place:] = above[longer, : n - place]
    kept = np.flatnonzero(packed["piece_to"] >= 0)
    last: IntArray = starts[kept] + lengths[kept] - 1
    after = np.empty((len(kept), width), np.int32)
    after[:, 0] = packed["piece_to"][kept]
    if n:
        after[:, -1] = last
        after[:, 1:-1] = before[last, : n - 1][:, ::-1]
    counted: IntArray = np.concatenate((np.array([len(kept)], np.int32), after.ravel()))
    return {"conv/before": before.ravel(), "conv/after": counted}


def _above(packed: Round, n: int) -> IntArray:
    """The sources of the n inputs before each piece, [Q, n], the newest first. A parent has a row or more: n steps."""
    starts, lengths, parents, begun = (packed[f"piece_{name}"] for name in ("starts", "lengths", "parents", "from"))
    sources = np.full((len(starts), n), -1, np.int32)
    piece = at = np.arange(len(starts), dtype=np.int32)
    seen, each = np.zeros(len(starts), np.int32), np.arange(1, n + 1, dtype=np.int32)
    while len(piece):
        left = each - seen[:, None]
        held = begun[at] >= 0
        window = -2 - (begun[at[held], None] * n + n - left[held])
        sources[piece[held]] = np.where(left[held] > 0, window, sources[piece[held]])
        on = (parents[at] >= 0) & ~held
        piece, at, seen, left = piece[on], parents[at[on]], seen[on], left[on]
        own = (left > 0) & (left <= lengths[at, None])
        sources[piece] = np.where(own, starts[at, None] + lengths[at, None] - left, sources[piece])
        seen = seen + lengths[at]
        more = seen < n
        piece, at, seen = piece[more], at[more], seen[more]
    return sources
