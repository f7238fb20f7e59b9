"""Which tiles of queries walk which blocks of keys: the work lists of triton.py, from a round's arrays.

A *run* is the keys of one segment (see reference.py). Its keys are counted off in blocks of KEYS from its first one.
The runs of a path, in its order, are the runs of the context (a stretch of the table `runs`) and then the *chain*, one
run a segment of the stream from the root down. A block's *place* is its number along the path.

A *tile* is some neighbouring queries of one segment, with all the query heads of a key head. It walks the blocks of
its path from the first that its window reaches to the last that its last row sees. A tile with many blocks, while
processors are idle, becomes several *pieces*, whose sums are joined afterwards. Where a root and its first child are
WHOLE, and few, the child's tiles begin with the root's queries, which see nothing behind the root: what is above both
is walked once.

With `invariant`, a path's blocks are parted wherever a multiple of SPAN positions begins, and the sums of the parts
are joined in their order, whether they are pieces of their own or walked by one program: which of them it is changes
no bits. Otherwise a context counts as one run, and a tile is parted evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ramet.round import Capacity, Round
from ramet.tree import MAX_ANCESTORS, WHOLE, BoolArray, IntArray

KEYS = 64  # keys a block
SPAN = 2048  # positions between two joints of a path, where bits must not depend on the load
NARROW, WIDE = 64, 128  # rows a tile: a row is one query of one head
ITEM = ("query", "n_queries", "segment", "n_blocks", "run", "key", "step", "slot", "n_above")
SEGMENT = ("block", "anchor", "context_end", *(f"run{i}" for i in range(MAX_ANCESTORS + 1)))
RUN = ("position", "n_keys", "n_paged", "pages", "row")
JOIN = ("query", "n_queries", "slot", "n_pieces")
_MIN_BLOCKS = 4  # of a piece
_BEGINNING, _JOINING = 2, 1  # what a piece costs besides its blocks, and what joining costs, in blocks
_MOST_TURNS = 3  # of the machine; with more, what its last leaves idle does not matter
_WIDE_LOAD = 12  # blocks for each program: with fewer there are too few wide tiles to go round
_TOLERANCE = 1.25  # how much longer than its share a tile may be before it is parted at spans
_Long = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a layer's heads and the card make of the lists. `widths`: the rows of tiles in use, the narrower first."""

    n_heads: int
    n_kv_heads: int
    widths: tuple[int, ...]
    programs: tuple[int, ...]  # of each width, as many as run at a time
    processors: int

    @classmethod
    def of(cls, n_heads: int, n_kv_heads: int, head_dim: int, processors: int) -> Tiling:
        group = n_heads // n_kv_heads
        assert group * n_kv_heads == n_heads
        narrow = max(NARROW, 1 << (group - 1).bit_length())
        widths = (narrow, WIDE) if head_dim <= 256 and narrow < WIDE else (narrow,)
        programs = tuple(processors * (2 if width <= NARROW and head_dim <= 256 else 1) for width in widths)
        return cls(n_heads, n_kv_heads, widths, programs, processors)

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv_heads

    @property
    def max_pieces(self) -> int:
        return 4 * self.processors

    @property
    def max_slots(self) -> int:
        """Rows of sums in memory between the pieces and their joining: at 256 numbers a row, 52 MB on an H200."""
        return 384 * self.processors

    def has_wide(self, n_queries: int) -> bool:
        """Whether wide tiles are looked for at all: so few rows fill half a card with them."""
        return len(self.widths) > 1 and 2 * n_queries * self.n_heads >= WIDE * self.processors

    def max_items(self, width: int, n_queries: int) -> int:
        """No round of so many queries has more items of this width."""
        fewest = 1 if width == self.widths[0] else self.widths[0] // self.group + 1
        return n_queries // fewest + self.max_pieces


def name(n_heads: int, n_kv_heads: int, head_dim: int, *, window: int, read: bool, invariant: bool) -> str:
    """What the names of a layer's lists begin with."""
    kind = f"attention/{'read' if read else 'every'}/{window}/{n_heads}x{n_kv_heads}x{head_dim}"
    return f"{kind}/invariant" if invariant else kind


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
    tiling = Tiling.of(n_heads, n_kv_heads, head_dim, processors)
    paths = _paths(packed, invariant)
    tiles = _tiles(packed, paths, tiling, window, read)
    pieces, joins = _pieces(paths, tiles, tiling, invariant)
    prefix = name(n_heads, n_kv_heads, head_dim, window=window, read=read, invariant=invariant)
    lists = {f"{prefix}/runs": paths.runs.ravel(), f"{prefix}/segments": paths.segments, f"{prefix}/joins": joins}
    for width, items in zip(tiling.widths, _items(paths, pieces), strict=False):
        lists[f"{prefix}/items{width}"] = items
    return lists


def room(
    capacity: Capacity,
    *,
    n_forks: int | None = None,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    window: int,
    read: bool,
    invariant: bool,
    processors: int,
) -> dict[str, int]:
    """How long the arrays of `plan` get at most.

    n_forks bounds the forks of all contexts together (the length of Stream.context_forks), which with `invariant` are
    runs of their own: as many as rows, where it is None. It is not looked at without.
    """
    tiling = Tiling.of(n_heads, n_kv_heads, head_dim, processors)
    prefix = name(n_heads, n_kv_heads, head_dim, window=window, read=read, invariant=invariant)
    n_rows = capacity.rows
    n_queries = capacity.reads if read else n_rows
    n_shared = n_forks if invariant and n_forks is not None else n_rows
    found = {
        f"{prefix}/runs": len(RUN) * (n_shared + n_rows),
        f"{prefix}/segments": len(SEGMENT) * n_rows,
        f"{prefix}/joins": len(JOIN) * (1 + tiling.max_pieces // 2),
    }
    for i, width in enumerate(tiling.widths):
        if i == 0 or tiling.has_wide(n_queries):
            found[f"{prefix}/items{width}"] = len(ITEM) * (1 + tiling.max_items(width, n_queries))
    return found


@lru_cache(maxsize=2)
def _paths(packed: Round, invariant: bool) -> _Paths:
    """Those of a round's first plan serve the others."""
    return _Paths(packed, invariant)


class _Paths:
    """The runs of every segment's path.

    The table's first n_shared runs are the contexts', the others the segments' own. first and end [S]: the stretch of a
    segment's context (end: behind its last run); chain [S, L]: the segments from the root down to it, where there are
    fewer than L behind -1; steps [S]: in which column the root is; above [S]: blocks of the context's part of the path;
    own_place [S]: the place of the first own block. segments: rows of SEGMENT, flat.
    """

    def __init__(self, packed: Round, invariant: bool) -> None:
        origins, n_segments = packed["origins"], len(packed["origins"])
        begins = packed["anchors"] if invariant else origins
        shared, self.bounds = _context_runs(packed, invariant)
        self.n_shared = len(shared)
        self.runs = np.zeros((self.n_shared + n_segments, len(RUN)), np.int32)
        self.own = self.runs[self.n_shared :]
        self.own[:, 0], self.own[:, 1], self.own[:, 4] = begins, packed["lengths"], packed["starts"]
        self.chain, self.steps = _chains(packed["parents"])
        self.first = self.end = self.above = np.zeros(n_segments, np.int64)
        self._before = np.zeros(self.n_shared + 1, np.int64)
        if self.n_shared:
            self.runs[: self.n_shared] = shared
            self._follow(packed, origins - begins)
        self.n_own = -(-self.own[:, 1] // KEYS)
        self.own_place = self.above + self.before[:, -1]
        table = np.zeros((n_segments, len(SEGMENT)), np.int32)
        table[:, 0], table[:, 1], table[:, 2] = packed["blocks"], packed["anchors"], self.end
        table[:, 3 : 3 + self.chain.shape[1]] = self.chain + self.n_shared
        self.segments = table.ravel()

    def _follow(self, packed: Round, n_paged: IntArray) -> None:
        """Contexts in front of the paths; a continuing root has n_paged keys in pages."""
        contexts, ends = packed["contexts"], self.bounds[1:]
        if n_paged.any():  # such a root's run holds the context's last
            self.own[:, 1] += n_paged
            self.own[:, 2], self.own[:, 3] = n_paged, packed["context_offsets"][contexts]
            ends = ends.copy()
            ends[contexts[n_paged > 0]] -= 1
        held = contexts >= 0
        self.first, self.end = np.where(held, self.bounds[contexts], 0), np.where(held, ends[contexts], 0)
        np.cumsum(-(-self.runs[: self.n_shared, 1] // KEYS), out=self._before[1:])
        self.above = self._before[self.end] - self._before[self.first]

    @cached_property
    def root(self) -> _Long:
        """[S] the segment at the head of each one's chain."""
        found: _Long = self.chain[np.arange(len(self.chain)), self.steps]
        return found

    @cached_property
    def before(self) -> _Long:
        """[S, L] how many blocks of the chain come before each of its segments."""
        found = np.zeros(self.chain.shape, np.int64)
        above = self.chain[:, :-1]
        np.cumsum(np.where(above >= 0, self.n_own[above], 0), axis=1, out=found[:, 1:])
        return found

    def find(self, segments: _Long, places: _Long) -> tuple[_Long, _Long, _Long]:
        """Run, key in it, and step in the chain behind it, of the blocks at places of the segments' paths."""
        if not places.any():
            in_context = (self.above > 0)[segments]
            root, steps = (self.root + self.n_shared)[segments], (self.steps + 1)[segments]
            return np.where(in_context, self.first[segments], root), places, steps - in_context
        runs, keys, steps = np.zeros((3, len(places)), np.int64)
        in_context = places < self.above[segments]
        of, below = segments[in_context], ~in_context
        begun = self._before[self.first[of]] + places[in_context]
        runs[in_context] = found = np.searchsorted(self._before[1:], begun, side="right")
        keys[in_context], steps[in_context] = (begun - self._before[found]) * KEYS, self.steps[of]
        of = segments[below]
        wanted = places[below] - self.above[of]
        level = _last(self.before[of], wanted)
        runs[below], keys[below] = self.n_shared + self.chain[of, level], (wanted - self.before[of, level]) * KEYS
        steps[below] = level + 1
        return runs, keys, steps

    def places(self, segments: _Long, positions: _Long, *, up: bool) -> _Long:
        """The place of the block that holds a position; with `up`, of the first block that begins at or after it."""
        found = np.zeros(len(positions), np.int64)
        in_context = positions < self.own[self.root, 0][segments]
        of, wanted, below = segments[in_context], positions[in_context], ~in_context
        runs = np.searchsorted(self._fork_keys, (self.first[of] << 32) + wanted, side="right") - 1
        blocks = _block(wanted - self.runs[runs, 0], self.runs[runs, 1], up)
        found[in_context] = self._before[runs] - self._before[self.first[of]] + blocks
        of, wanted = segments[below], positions[below]
        level = _last(np.where(self.chain >= 0, self.own[self.chain, 0], 0)[of], wanted)
        own = self.own[self.chain[of, level]]
        found[below] = self.above[of] + self.before[of, level] + _block(wanted - own[:, 0], own[:, 1], up)
        return found

    @cached_property
    def _fork_keys(self) -> _Long:
        """[n_shared] by first run of the context and position."""
        return (np.repeat(self.bounds[:-1], np.diff(self.bounds)) << 32) + self.runs[: self.n_shared, 0]


def _last(begins: IntArray | _Long, wanted: _Long) -> _Long:
    """The last of each row's columns, ascending, that is not above `wanted`."""
    found: _Long = (begins <= wanted[:, None]).sum(1) - 1
    return found


def _block(keys: _Long, n_keys: IntArray, up: bool) -> _Long:
    return np.minimum(-(-keys // KEYS) if up else keys // KEYS, -(-n_keys // KEYS))


def _context_runs(packed: Round, invariant: bool) -> tuple[_Long, _Long]:
    """Rows of RUN, and [X+1] where each context's begin."""
    lengths, offsets = packed["context_lengths"], packed["context_offsets"]
    n = len(lengths)
    if not invariant or not n:
        runs = np.zeros((n, len(RUN)), np.int64)
        runs[:, 1] = runs[:, 2] = lengths
        runs[:, 3] = offsets[:n]
        return runs, np.arange(n + 1)
    forks, bounds = packed["context_forks"], packed["context_fork_offsets"].astype(np.int64)
    ends = np.append(forks[1:], 0)
    ends[bounds[1:] - 1] = lengths
    runs = np.zeros((len(forks), len(RUN)), np.int64)
    runs[:, 0] = forks
    runs[:, 1] = runs[:, 2] = ends - forks
    runs[:, 3] = np.repeat(offsets[:n], np.diff(bounds))
    return runs, bounds


def _chains(parents: IntArray) -> tuple[_Long, _Long]:
    """[S, L] the segments from the root down to each, the shorter ones behind -1; [S] where they begin."""
    levels, above = [np.arange(len(parents))], parents.astype(np.int64)
    while len(above) and above.max() >= 0:
        levels.append(above)
        above = np.where(above >= 0, parents[above], -1)
    chain = np.stack(levels[::-1], 1)
    return chain, (chain < 0).sum(1)


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


def _tiles(packed: Round, paths: _Paths, tiling: Tiling, window: int, read: bool) -> _Tiles:
    rows = packed["read_rows" if read else "every_rows"]
    if tiling.has_wide(len(rows)):
        found = _tiles_of(packed, paths, tiling, window, read, wide=True)
        n_blocks = (found.ends - found.begins)[found.wide].sum()
        if n_blocks * tiling.n_kv_heads >= _WIDE_LOAD * tiling.programs[1]:
            return found
    return _tiles_of(packed, paths, tiling, window, read, wide=False)


def _tiles_of(packed: Round, paths: _Paths, tiling: Tiling, window: int, read: bool, *, wide: bool) -> _Tiles:
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


def _from_above(packed: Round, bounds: IntArray, tiling: Tiling) -> _Long:
    """[S] how many queries of its parent's each segment's tiles begin with."""
    parents, whole, counts = packed["parents"], packed["blocks"] == WHOLE, np.diff(bounds)
    found = np.zeros(len(parents), np.int64)
    child = 1 + np.flatnonzero((parents[1:] == np.arange(len(parents) - 1)) & whole[1:] & whole[:-1])
    child = child[(parents[child - 1] < 0) & (counts[child] > 0)]
    child = child[counts[child] + counts[child - 1] <= tiling.widths[-1] // tiling.group]
    found[child] = counts[child - 1]
    return found


def _cut(bounds: IntArray, n_above: _Long, tiling: Tiling, wide: bool) -> tuple[_Long, _Long, _Long, BoolArray | None]:
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


def _pieces(paths: _Paths, tiles: _Tiles, tiling: Tiling, invariant: bool) -> tuple[_Pieces, IntArray]:
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


def _piece_counts(paths: _Paths, tiles: _Tiles, tiling: Tiling, invariant: bool) -> _Long | None:
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


def _limits(n_blocks: _Long, wide: BoolArray | None, tiling: Tiling, invariant: bool) -> _Long | int:
    """How many blocks a piece may have."""
    find = _share if invariant else _best_limit
    if wide is None:
        return find(n_blocks, tiling.n_kv_heads, tiling.programs[0])
    kinds = zip((~wide, wide), tiling.programs, strict=True)
    narrow, broad = (find(n_blocks[kind], tiling.n_kv_heads, n) for kind, n in kinds)
    return np.where(wide, np.int64(broad), np.int64(narrow))


def _share(n_blocks: _Long, n_kv_heads: int, n_programs: int) -> int:
    """What is not much longer than what a program gets when all do the same."""
    return int(max(-(-int(n_blocks.sum()) * n_kv_heads // n_programs), _MIN_BLOCKS) * _TOLERANCE)


def _best_limit(n_blocks: _Long, n_kv_heads: int, n_programs: int) -> int:
    """With which the last program is done soonest, when each takes one piece a turn."""
    if not len(n_blocks):
        return _MIN_BLOCKS
    longest, load = int(n_blocks.max()), int(n_blocks.sum()) * n_kv_heads
    n_units = len(n_blocks) * n_kv_heads
    fewest = -(-n_units // n_programs)
    best, least = longest, max(longest, -(-load * fewest // n_units)) + fewest * _BEGINNING
    for turns in range(fewest, _MOST_TURNS + 1):
        most, limit = turns * n_programs // n_kv_heads, max(-(-load // (turns * n_programs)), _MIN_BLOCKS)
        while limit < longest and int((-(-n_blocks // limit)).sum()) > most:
            limit += max(1, limit // 8)
        cost = turns * (limit + _BEGINNING) + _JOINING
        if limit < longest and cost < least:
            best, least = limit, cost
    return best


def _span_of(paths: _Paths, tiles: _Tiles, places: _Long) -> _Long:
    """In which of its path's spans each block begins."""
    runs, keys, _ = paths.find(tiles.segments, places)
    spans: _Long = (paths.runs[runs, 0] + keys) // SPAN
    return spans


def _ends(paths: _Paths, tiles: _Tiles, of: _Long, part: _Long, counts: _Long, invariant: bool) -> tuple[_Long, _Long]:
    """The places at which the pieces begin and end."""
    begins, ends, n_parts = tiles.begins[of], tiles.ends[of], counts[of]
    if not invariant:
        n = ends - begins
        return begins + n * part // n_parts, begins + n * (part + 1) // n_parts
    span = _span_of(paths, tiles, tiles.begins)[of] + part
    inner = np.flatnonzero(part > 0)
    begins[inner] = paths.places(tiles.segments[of[inner]], span[inner] * SPAN, up=True)
    ends[inner - 1] = begins[inner]
    return begins, ends


def _items(paths: _Paths, pieces: _Pieces) -> list[IntArray]:
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
