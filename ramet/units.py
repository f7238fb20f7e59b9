"""Unit and Units: what each request brings to a round, one by one and as flat arrays.

A Unit is a tree whose rows may also see a context: rows of the same request that earlier rounds left in pages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter

import numpy as np

from ramet.tree import BoolArray, IntArray, Segment, Tree

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A tree, the context that its roots follow, and where what it computes is kept.

    `context` holds the page numbers of positions [0, n_context); the tree's origins count from
    n_context. `forks` [F] are the positions at which the context's segments began, 0 the first; with
    `continues` the tree's one root is more of the last of them, and no fork. `slots` [n_kept] are
    where the first n_kept rows of the tree go (slot = page * page_size + offset); empty keeps none.

    Recurrent states live in slots of their own: `state` holds the one after the context (-1: there is no context, or
    the model has no recurrent layers), and `leaves` [L, 2] says after which rows of the tree, ascending, the
    state is kept, and in which slot.
    """

    tree: Tree
    context: IntArray = field(default_factory=lambda: _NONE)
    n_context: int = 0
    slots: IntArray = field(default_factory=lambda: _NONE)
    forks: IntArray = field(default_factory=lambda: np.zeros(1, np.int32))
    continues: bool = False
    state: int = -1
    leaves: IntArray = field(default_factory=lambda: _NONE.reshape(0, 2))

    def __post_init__(self) -> None:
        assert not self.continues or self.n_context > 0


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Many units as flat arrays, field by field, each field's the units' values end to end.

    Every array is int32 (other integers and normalize's bools are cast where they are packed); nothing is checked.
    counts [U, 11] are each unit's `COUNTS`. tokens [T]; positions [T], by which rows are rotated and nothing else: -1
    is a row's place in its path, other numbers are for segments whose block is WHOLE. lengths, parents, blocks [S],
    parents counted within the unit. read_segments, read_rows, normalize [R] as in Tree, and widths [R], how many
    columns each reads; columns [C]. pages [P], of contexts; forks [F]; slots [K]; leaves [2 L], a row of the unit and a
    slot each.
    """

    counts: IntArray
    tokens: IntArray
    positions: IntArray
    lengths: IntArray
    parents: IntArray
    blocks: IntArray
    read_segments: IntArray
    read_rows: IntArray
    normalize: IntArray | BoolArray
    widths: IntArray
    columns: IntArray
    pages: IntArray
    forks: IntArray
    slots: IntArray
    leaves: IntArray

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_context(self) -> int:
        """Rows of all contexts."""
        return int(self.counts[:, COUNTS.index("n_context")].sum())

    @property
    def arrays(self) -> tuple[IntArray, ...]:
        """The fields, in the order above."""
        found: tuple[IntArray, ...] = _ARRAYS(self)
        return found

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Units:
        """The units, all of whose rows have the positions of their places."""
        if not units:
            return _NO_UNITS
        trees, *of_units, leaves, n_context, continues, states = zip(*map(_OF_UNIT, units), strict=True)
        normalize, *of_trees = zip(*map(_OF_TREE, trees), strict=True)
        given = [*of_trees, *of_units]
        sizes = [[*map(len, arrays)] for arrays in given]
        data = _laid(itertools.chain.from_iterable(given))
        ends = [*itertools.accumulate(map(sum, sizes), initial=0)]
        assert len(data) == ends[-1]
        tokens, lengths, parents, blocks, segments, rows, columns, offsets, pages, forks, slots = (
            data[lo:hi] for lo, hi in itertools.pairwise(ends)
        )
        n_rows, n_segments, _, _, n_reads, _, n_columns, _, *n_held = sizes
        counts = [n_rows, n_segments, n_reads, n_columns, *n_held, [*map(len, leaves)], n_context, continues, states]
        return cls(
            np.fromiter(itertools.chain.from_iterable(counts), np.int32).reshape(len(counts), -1).T,
            tokens, np.full(len(tokens), -1, np.int32), lengths, parents, blocks, segments, rows,
            np.frombuffer(b"".join(normalize), np.bool_), _widths(offsets, n_reads), columns,
            pages, forks, slots, _laid(leaves),
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Units]) -> Units:
        """The units of the first part, those of the second, and so on."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(np.concatenate, zip(*(part.arrays for part in parts), strict=True)))


COUNTS = (
    "n_rows", "n_segments", "n_reads", "n_columns", "n_pages", "n_forks", "n_slots", "n_leaves", "n_context",
    "continues", "state",
)  # fmt: skip
_ARRAYS = attrgetter(*(f.name for f in fields(Units)))
_OF_UNIT = attrgetter("tree", "context", "forks", "slots", "leaves", "n_context", "continues", "state")
_OF_TREE = attrgetter(
    "normalize", "tokens", "lengths", "parents", "blocks", "read_segments", "read_rows", "columns", "offsets"
)
_NO_UNITS = Units(_NONE.reshape(0, len(COUNTS)), *[_NONE] * (len(fields(Units)) - 1))


def _laid(arrays: Iterable[IntArray]) -> IntArray:
    """The arrays end to end. Joining their bytes is four times as fast as np.concatenate for many short ones."""
    return np.frombuffer(b"".join(arrays), np.int32)  # type: ignore[arg-type]  # an array is a buffer


def _widths(offsets: IntArray, n_reads: Sequence[int]) -> IntArray:
    """How many columns each read has, from the trees' offsets end to end."""
    widths = offsets[1:] - offsets[:-1]
    if len(n_reads) == 1:
        return widths
    own = np.ones(len(widths), np.bool_)
    own[[i + at for i, at in enumerate(itertools.accumulate(n_reads[:-1]))]] = False  # a tree's end to the next one's 0
    return widths[own]


def filled(units: Units, multiple: int) -> Units:
    """The units, and a segment that nothing reads or sees, which fills the rows up to a multiple of `multiple`."""
    n_fill = -units.n_tokens % multiple
    return Units.joined([units, _padding(n_fill)]) if n_fill else units


@functools.lru_cache
def _padding(n_rows: int) -> Units:
    return Units.of([Unit(Tree.of([Segment(np.zeros(n_rows, np.int32))]))])
