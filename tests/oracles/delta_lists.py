"""The work lists of the gated delta rule, in NumPy: what native/plan_recurrent.cpp is compared with."""

from __future__ import annotations

import numpy as np

from ramet.ops.gated_delta.lists import BLOCK, CARRIES, N_BLOCKS
from ramet.ops.gated_delta.reference import CHUNK
from ramet.round import Round
from ramet.tree import IntArray

_EACH = np.arange(N_BLOCKS, dtype=np.int32)
_FIELDS = 1 << 5 * _EACH


def plan(packed: Round) -> dict[str, IntArray]:
    """See ops/gated_delta/lists.py."""
    lengths = packed["piece_lengths"]
    begin, end, wait, flag = _states(packed)
    carries = end != -1
    span = np.where(carries | (lengths > 2 * BLOCK), 2, (lengths > BLOCK).astype(np.int32))
    item, place, pieces = _items(span, begin)
    own = (1 << span)[:, None] > _EACH
    at = (item[:, None] * N_BLOCKS + place[:, None] + _EACH)[own]
    starts, counts = np.zeros((2, len(pieces), N_BLOCKS), np.int32)
    starts.ravel()[at] = (packed["piece_starts"][:, None] + BLOCK * _EACH)[own]
    counts.ravel()[at] = (lengths[:, None] - BLOCK * _EACH)[own].clip(0, BLOCK)
    kind, rows = span[pieces], lengths[pieces]
    rows_of = np.where(kind == 2, rows, counts @ _FIELDS)
    chunks = -(-rows // CHUNK)
    word = kind + CARRIES * carries[pieces] + (rows_of << 3)
    behind = np.stack((begin, end, wait, flag), 1)[pieces]
    items = np.concatenate((starts, word[:, None], chunks[:, None], behind), 1)
    items = items[np.lexsort((-chunks, _depths(packed["piece_parents"])[pieces]))]
    walked = (items[:, 5] > 1) | ((items[:, 4] & CARRIES) != 0)
    n_walked = np.where(walked, items[:, 5], 0)
    first = np.where(walked, np.cumsum(n_walked) - n_walked, -1)
    walk = np.concatenate((items[:, :1], items[:, 4:], first[:, None]), 1)[walked]
    counted = np.array([len(walk), np.count_nonzero(flag >= 0)], np.int32)
    return {
        "delta/tiles": _tiles(items, first),
        "delta/walk": np.concatenate((counted, walk.ravel()), dtype=np.int32),
        "delta/forks": np.zeros(np.count_nonzero(end < -1), np.int32),
        "delta/chunks": np.zeros(n_walked.sum(), np.int32),
    }


def _states(packed: Round) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """begin, end, wait and flag of every piece."""
    parents, begun = packed["piece_parents"], packed["piece_from"]
    follows = (parents >= 0) & (begun < 0)
    followed = np.zeros(len(parents), bool)
    followed[parents[follows]] = True
    flag = np.where(followed, np.cumsum(followed, dtype=np.int32), 0) - 1
    end = packed["piece_to"].copy()
    own = np.flatnonzero(followed & (end < 0))
    end[own] = np.arange(-2, -2 - len(own), -1)
    begin = np.where(follows, end[parents], begun)
    return begin, end, np.where(follows, flag[parents], -1), flag


def _items(span: IntArray, begin: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The item of every piece, the block of its tile at which it lies, and each item's first piece."""
    n = len(span)
    short = np.flatnonzero(span < 2).astype(np.int32)
    item, place, alone = *np.zeros((2, n), np.int32), np.flatnonzero(span == 2).astype(np.int32)
    item[alone] = np.arange(len(alone))
    if not len(short):
        return item, place, alone
    short = short[np.lexsort((span[short], begin[short]))]
    spans, states = span[short], begin[short]
    new = np.ones(len(short), bool)
    new[1:] = (states[1:] != states[:-1]) | (spans[1:] != spans[:-1])
    rank = np.arange(len(short)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    place[short] = (rank << spans) % N_BLOCKS
    first = place[short] == 0
    item[short] = len(alone) - 1 + np.cumsum(first)
    return item, place, np.concatenate((alone, short[first]))


def _depths(parents: IntArray) -> IntArray:
    """How many pieces are above each, in as many steps as the greatest depth has binary digits."""
    above, depths = parents.copy(), (parents >= 0).astype(np.int32)
    while (live := np.flatnonzero(above >= 0)).size:
        depths[live] += depths[above[live]]
        above[live] = above[above[live]]
    return depths


def _tiles(items: IntArray, first: IntArray) -> IntArray:
    n_chunks = items[:, 5]
    many = np.repeat(n_chunks, n_chunks)
    chunk = np.arange(len(many), dtype=np.int32) - np.repeat(np.cumsum(n_chunks, dtype=np.int32) - n_chunks, n_chunks)
    kept = np.concatenate((items[:, : N_BLOCKS + 1], first[:, None], items[:, 6:7]), 1, dtype=np.int32)
    tiles = np.repeat(kept, n_chunks, axis=0)
    tiles[:, N_BLOCKS + 1] += np.where(tiles[:, N_BLOCKS + 1] >= 0, chunk, 0)
    tiles[:, :N_BLOCKS] += CHUNK * chunk[:, None]
    tiles[:, N_BLOCKS] -= CHUNK * chunk << 3
    tiles[chunk + 1 < many, N_BLOCKS] |= CARRIES
    return np.concatenate((np.array([len(tiles)], np.int32), tiles.ravel()))
