"""The work lists of attention, in NumPy: what native/plan_attention.cpp is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from oracles.attention_paths import Paths, paths_of

from ramet.ops.attention import lists
from ramet.ops.attention.lists import ITEM, JOIN, KEYS, WIDE, QueryTiling, name
from ramet.round import Round
from ramet.tree import WHOLE, BoolArray, IntArray

_BEGINNING, _JOINING = 2, 1  # what a piece costs besides its blocks, and what joining costs, in blocks
_MOST_TURNS = 3  # of the machine; with more, what its last leaves idle does not matter
_WIDE_LOAD = 12  # blocks for each program: with fewer there are too few wide tiles to go round
_TOLERANCE = 1.25  # how much longer than its share a tile may be before it is parted at spans
_Long = npt.NDArray[np.int64]


def plan(
    packed: Round,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    window: int,
    read: bool,
    invariant: bool,
    processors: int,
) -> dict[str, IntArray]:
    """The lists that `triton.attention` takes from Stream.work for one kind of layer, every or the read rows.

    "<name>/items<width>" for each width of tile in use, "<name>/joins": a row that begins with the number of rows that
    follow, then rows of ITEM or JOIN, the longest items first. "<name>/runs" and "<name>/segments": rows of RUN and
    SEGMENT.
    """
    tiling = QueryTiling.of(n_heads, n_kv_heads, head_dim, processors)
    paths = paths_of(packed, invariant)
    tiles = _tiles(packed, paths, tiling, window, read)
    pieces, joins = _pieces(paths, tiles, tiling, invariant)
    prefix = name(n_heads, n_kv_heads, head_dim, window=window, read=read, invariant=invariant)
    lists = {f"{prefix}/runs": paths.runs.ravel(), f"{prefix}/segments": paths.segments, f"{prefix}/joins": joins}
    for width, items in zip(tiling.widths, _items(paths, pieces), strict=False):
        lists[f"{prefix}/items{width}"] = items
    return lists


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """[M] each: the segment, its queries, of which the first n_above are its parent's, whether the tile is wide, and
    the places of the blocks that it walks."""

    segments: _Long
    queries: _Long
    n_queries: _Long
    n_above: _Long
    wide: BoolArray | None  # None: wide ones were not looked for
    begins: _Long
    ends: _Long


def _tiles(packed: Round, paths: Paths, tiling: QueryTiling, window: int, read: bool) -> _Tiles:
    rows = packed["read_rows" if read else "every_rows"]
    if tiling.has_wide(len(rows)):
        found = _tiles_of(packed, paths, tiling, window, read, wide=True)
        n_blocks = (found.ends - found.begins)[found.wide].sum()
        if n_blocks * tiling.n_kv_heads >= _WIDE_LOAD * tiling.programs[1]:
            return found
    return _tiles_of(packed, paths, tiling, window, read, wide=False)


def _tiles_of(packed: Round, paths: Paths, tiling: QueryTiling, window: int, read: bool, *, wide: bool) -> _Tiles:
    rows = packed["read_rows" if read else "every_rows"]
    bounds = packed["read_bounds" if read else "every_bounds"]
    n_above = np.zeros(len(bounds) - 1, np.int64) if window else _from_above(packed, bounds, tiling)
    segments, queries, n_queries, is_wide = _cut(bounds, n_above, tiling, wide)
    left = n_above[segments] - (queries - bounds[segments] + n_above[segments])
    lifted = left >= n_queries  # a root's queries alone
    segments, n_above = segments - lifted, np.where(lifted, 0, np.maximum(left, 0))
    positions = packed["positions"]
    last = positions[rows[queries + n_queries - 1]].astype(np.int64)
    blocks, own = packed["blocks"][segments], paths.own[segments]
    seen = np.minimum(last // blocks * blocks + blocks - own[:, 0], own[:, 1])
    ends = paths.own_place[segments] - (-seen // KEYS)
    begins = np.zeros(len(segments), np.int64)
    if window > 0:
        first = positions[rows[queries]].astype(np.int64)
        lowest = np.maximum(first // blocks * blocks, packed["anchors"][segments]) - (window - 1)
        reached = np.flatnonzero(lowest > 0)
        if len(reached):
            begins[reached] = paths.places(segments[reached], lowest[reached], up=False)
    return _Tiles(segments, queries, n_queries, n_above, is_wide, begins, ends)


def _from_above(packed: Round, bounds: IntArray, tiling: QueryTiling) -> _Long:
    """[S] how many queries of its parent's each segment's tiles begin with."""
    parents, whole, counts = packed["parents"], packed["blocks"] == WHOLE, np.diff(bounds)
    found = np.zeros(len(parents), np.int64)
    child = 1 + np.flatnonzero((parents[1:] == np.arange(len(parents) - 1)) & whole[1:] & whole[:-1])
    child = child[(parents[child - 1] < 0) & (counts[child] > 0)]
    child = child[counts[child] + counts[child - 1] <= tiling.widths[-1] // tiling.group]
    found[child] = counts[child - 1]
    return found


def _cut(
    bounds: IntArray, n_above: _Long, tiling: QueryTiling, wide: bool
) -> tuple[_Long, _Long, _Long, BoolArray | None]:
    """Segments, first queries, numbers of queries of the tiles, and whether they are wide: a segment's wide ones come
    before its narrow one, which it has where its last rows fit one."""
    begins, counts = bounds[:-1] - n_above, np.diff(bounds) + n_above
    counts[:-1] -= n_above[1:]
    narrow = tiling.widths[0] // tiling.group
    if not wide:
        return *_slices(begins, counts, narrow), None
    size = WIDE // tiling.group
    n_wide = np.minimum(counts, (counts + (size - narrow - 1)) // size * size)
    first, second = _slices(begins, n_wide, size), _slices(begins + n_wide, counts - n_wide, narrow)
    a, b, c = (np.concatenate(x) for x in zip(first, second, strict=True))
    return a, b, c, np.arange(len(a)) < len(first[0])


def _slices(begins: IntArray | _Long, counts: IntArray | _Long, size: int) -> tuple[_Long, _Long, _Long]:
    n = -(-counts // size)
    of = np.repeat(np.arange(len(n)), n)
    offset = _within(n) * size
    return of, begins[of] + offset, np.minimum(counts[of] - offset, size)


def _within(counts: _Long | IntArray) -> _Long:
    """0 .. counts[i] - 1 for each i, one behind another."""
    ends: _Long = np.cumsum(counts, dtype=np.int64)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """What items say, [I] each; wide as in _Tiles."""

    queries: _Long
    n_queries: _Long
    segments: _Long
    begins: _Long
    n_blocks: _Long
    slots: _Long | int
    n_above: _Long
    wide: BoolArray | None


def _pieces(paths: Paths, tiles: _Tiles, tiling: QueryTiling, invariant: bool) -> tuple[_Pieces, IntArray]:
    """The tiles, some of them in several pieces; and the list of joins."""
    n_blocks, counts = tiles.ends - tiles.begins, _piece_counts(paths, tiles, tiling, invariant)
    if counts is None:
        whole = _Pieces(
            tiles.queries, tiles.n_queries, tiles.segments, tiles.begins, n_blocks, -1, tiles.n_above, tiles.wide
        )
        return whole, np.zeros(len(JOIN), np.int32)
    parted = counts > 1
    sizes = tiles.n_queries * tiling.n_heads
    used = np.where(parted, counts * sizes, 0)
    slots = np.where(parted, np.cumsum(used) - used, -1)
    joins = np.stack((tiles.queries, tiles.n_queries, slots, counts), 1)[parted]
    of, part = np.repeat(np.arange(len(counts)), counts), _within(counts)
    begins, ends = _ends(paths, tiles, of, part, counts, invariant)
    places = np.where(parted[of], slots[of] + part * sizes[of], -1)
    found = _Pieces(
        tiles.queries[of], tiles.n_queries[of], tiles.segments[of], begins, ends - begins, places, tiles.n_above[of],
        None if tiles.wide is None else tiles.wide[of],
    )  # fmt: skip
    return found, _counted(joins[np.argsort(-joins[:, 3] * joins[:, 1], kind="stable")])


def _piece_counts(paths: Paths, tiles: _Tiles, tiling: QueryTiling, invariant: bool) -> _Long | None:
    """[M] how many pieces each tile becomes; None where each is one."""
    n_blocks = tiles.ends - tiles.begins
    limits = _limits(n_blocks, tiles.wide, tiling, invariant)
    while (parted := n_blocks > limits).any():
        if invariant:
            spans = [_span_of(paths, tiles, places) for places in (tiles.begins, tiles.ends - 1)]
            counts = np.where(parted, spans[1] - spans[0] + 1, 1)
        else:
            counts = -(-n_blocks // limits)
        several = counts > 1
        n_slots = int((counts * tiles.n_queries)[several].sum()) * tiling.n_heads
        if n_slots <= tiling.max_slots and int(counts[several].sum()) <= tiling.max_pieces:
            return counts if several.any() else None
        limits = limits * 2
    return None


def _limits(n_blocks: _Long, wide: BoolArray | None, tiling: QueryTiling, invariant: bool) -> _Long | int:
    """How many blocks a piece may have."""
    find = _share if invariant else _best_limit
    if wide is None:
        return find(n_blocks, tiling.n_kv_heads, tiling.programs[0])
    kinds = zip((~wide, wide), tiling.programs, strict=True)
    narrow, broad = (find(n_blocks[kind], tiling.n_kv_heads, n) for kind, n in kinds)
    return np.where(wide, np.int64(broad), np.int64(narrow))


def _share(n_blocks: _Long, n_kv_heads: int, n_programs: int) -> int:
    """What is not much longer than what a program gets when all do the same."""
    return int(max(-(-int(n_blocks.sum()) * n_kv_heads // n_programs), lists.MIN_BLOCKS) * _TOLERANCE)


def _best_limit(n_blocks: _Long, n_kv_heads: int, n_programs: int) -> int:
    """With which the last program is done soonest, when each takes one piece a turn."""
    if not len(n_blocks):
        return lists.MIN_BLOCKS
    longest, load = int(n_blocks.max()), int(n_blocks.sum()) * n_kv_heads
    n_units = len(n_blocks) * n_kv_heads
    fewest = -(-n_units // n_programs)
    best, least = longest, max(longest, -(-load * fewest // n_units)) + fewest * _BEGINNING
    for turns in range(fewest, _MOST_TURNS + 1):
        most, limit = turns * n_programs // n_kv_heads, max(-(-load // (turns * n_programs)), lists.MIN_BLOCKS)
        while limit < longest and int((-(-n_blocks // limit)).sum()) > most:
            limit += max(1, limit // 8)
        cost = turns * (limit + _BEGINNING) + _JOINING
        if limit < longest and cost < least:
            best, least = limit, cost
    return best


def _span_of(paths: Paths, tiles: _Tiles, places: _Long) -> _Long:
    """In which of its path's spans each block begins."""
    runs, keys, _ = paths.find(tiles.segments, places)
    spans: _Long = (paths.runs[runs, 0] + keys) // lists.SPAN
    return spans


def _ends(paths: Paths, tiles: _Tiles, of: _Long, part: _Long, counts: _Long, invariant: bool) -> tuple[_Long, _Long]:
    """The places at which the pieces begin and end."""
    begins, ends, n_parts = tiles.begins[of], tiles.ends[of], counts[of]
    if not invariant:
        n = ends - begins
        return begins + n * part // n_parts, begins + n * (part + 1) // n_parts
    span = _span_of(paths, tiles, tiles.begins)[of] + part
    inner = np.flatnonzero(part > 0)
    begins[inner] = paths.places(tiles.segments[of[inner]], span[inner] * lists.SPAN, up=True)
    ends[inner - 1] = begins[inner]
    return begins, ends


def _items(paths: Paths, pieces: _Pieces) -> list[IntArray]:
    """The list of items of each width, the longest first."""
    table = np.empty((len(pieces.segments), len(ITEM)), np.int32)
    table[:, 0], table[:, 1], table[:, 2] = pieces.queries, pieces.n_queries, pieces.segments
    table[:, 3], table[:, 7], table[:, 8] = pieces.n_blocks, pieces.slots, pieces.n_above
    table[:, 4], table[:, 5], table[:, 6] = paths.find(pieces.segments, pieces.begins)
    order = np.argsort(-pieces.n_blocks, kind="stable")
    if pieces.wide is None:
        return [_counted(table[order])]
    wide = pieces.wide[order]
    return [_counted(table[order[~wide]]), _counted(table[order[wide]])]


def _counted(rows: IntArray | _Long) -> IntArray:
    """Flat, with a first row that begins with how many follow."""
    found = np.zeros((len(rows) + 1, rows.shape[1]), np.int32)
    found[0, 0], found[1:] = len(rows), rows
    return found.ravel()
