"""The work lists of triton.py: which tiles of queries walk which blocks of keys (made by native/plan_attention.cpp).

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

from ramet.round import Capacity
from ramet.tree import MAX_ANCESTORS

KEYS = 64  # keys a block
SPAN = 2048  # positions between two joints of a path, where bits must not depend on the load
NARROW, WIDE = 64, 128  # rows a tile: a row is one query of one head
ITEM = ("query", "n_queries", "segment", "n_blocks", "run", "key", "step", "slot", "n_above")
SEGMENT = ("block", "anchor", "context_end", *(f"run{i}" for i in range(MAX_ANCESTORS + 1)))
RUN = ("position", "n_keys", "n_paged", "pages", "row")
JOIN = ("query", "n_queries", "slot", "n_pieces")
MIN_BLOCKS = 4  # of a piece


@dataclass(frozen=True, slots=True)
class QueryTiling:
    """What a layer's heads and the card make of the lists. `widths`: the rows of tiles in use, the narrower first."""

    n_heads: int
    n_kv_heads: int
    widths: tuple[int, ...]
    programs: tuple[int, ...]  # of each width, as many as run at a time
    processors: int

    @classmethod
    def of(cls, n_heads: int, n_kv_heads: int, head_dim: int, processors: int) -> QueryTiling:
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
    """The greatest lengths of the lists in Stream.work for one kind of layer, whose queries are every or the read rows.

    "<name>/items<width>" for each width of tile in use, "<name>/joins": a row that begins with the number of rows that
    follow, then rows of ITEM or JOIN, the longest items first. "<name>/runs" and "<name>/segments": rows of RUN and
    SEGMENT.

    n_forks bounds the forks of all contexts together (the length of Stream.context_forks), which with `invariant` are
    runs of their own: as many as rows, where it is None. It is not looked at without.
    """
    tiling = QueryTiling.of(n_heads, n_kv_heads, head_dim, processors)
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
