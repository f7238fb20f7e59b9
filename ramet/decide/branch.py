"""QuestionBranch: the part of a tree for one question, or several, as arrays that fit behind any trunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ramet.tree import WHOLE, BoolArray, IntArray

Ids = Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class CellGrid:
    """The cells of a branch that belong to one question: n_orders * n_options, one for each option in each order, the
    options of an order side by side. `distinct` [n_cells] is False for an option with the same reply as an earlier one,
    so that their mass counts once."""

    n_orders: int
    n_options: int
    distinct: BoolArray

    @property
    def n_cells(self) -> int:
        return self.n_orders * self.n_options


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of a canvas from which a question's label is read: labels[order][option] are the ids that may spell it. A
    question that has fewer orders than the canvas has prompts is read below the first of them."""

    row: int
    labels: Sequence[Sequence[Ids]]


@dataclass(frozen=True, slots=True, eq=False)
class QuestionBranch:
    """The segments below a trunk that belong to one question, or to several that share canvases, depth first, and their
    reads.

    The cells of the questions follow one another; a cell's log-probability is the sum over the reads with columns that
    carry its number, of each the likeliest such column. tokens [T]; lengths, parents, blocks [S] (parents count
    from the branch's first segment, -1 is the trunk); read_segments, read_rows, widths [R] (columns
    of each read); columns, cells [C]; grids: one for each question.
    """

    tokens: IntArray
    lengths: IntArray
    parents: IntArray
    blocks: IntArray
    read_segments: IntArray
    read_rows: IntArray
    widths: IntArray
    columns: IntArray
    cells: IntArray
    grids: tuple[CellGrid, ...]

    @property
    def n_cells(self) -> int:
        return sum(grid.n_cells for grid in self.grids)

    @property
    def n_entries(self) -> int:
        """Its size in array entries, for the cache."""
        return len(self.tokens) + 3 * len(self.lengths) + 3 * len(self.widths) + 2 * len(self.columns)


def grow(prompts: Sequence[Ids], replies: Sequence[Sequence[Ids]], end: int | None) -> QuestionBranch:
    """A question's branch from the ids of each order's prompt and of each option's reply in it.

    The first token of every reply is read from the prompt's last row. What follows it, the other tokens and `end`
    (None: a label, which need not end the reply), is read from a segment of the reply's own.
    """
    growth, n_options = _Growth(), len(replies[0])
    for order, (prompt, options) in enumerate(zip(prompts, replies, strict=True)):
        _read_replies(growth, growth.segment(prompt, -1), order * n_options, options, end)
    return growth.branch((CellGrid(len(prompts), n_options, _first_of_their_kind(replies)),))


def grow_canvases(prompts: Sequence[Ids], canvas: Ids, n_samples: int, slots: Sequence[Slot]) -> QuestionBranch:
    """The branch of questions that share canvases, a slot each: `n_samples` below each prompt, whose rows see each
    other. Each canvas is an order of its own."""
    growth, grids = _Growth(), [_grid_of(slot, n_samples) for slot in slots]
    firsts = list(accumulate((grid.n_cells for grid in grids), initial=0))
    for order, prompt in enumerate(prompts):
        parent = growth.segment(prompt, -1)
        for sample in range(n_samples):
            segment = growth.segment(canvas, parent, WHOLE)
            for slot, grid, first in zip(slots, grids, firsts, strict=False):
                if order < len(slot.labels):
                    at = first + (order * n_samples + sample) * grid.n_options
                    growth.read_spellings(segment, slot.row, slot.labels[order], at)
    return growth.branch(tuple(grids))


def _grid_of(slot: Slot, n_samples: int) -> CellGrid:
    n_orders, n_options = len(slot.labels) * n_samples, len(slot.labels[0])
    return CellGrid(n_orders, n_options, np.ones(n_orders * n_options, np.bool_))


def _read_replies(growth: _Growth, parent: int, first: int, options: Sequence[Ids], end: int | None) -> None:
    """Add the reads of one order, whose cells begin at `first`: those of first tokens in the last row of the segment
    `parent`, those of the other tokens in segments below it."""
    row = growth.lengths[parent] - 1
    growth.read_spellings(parent, row, [ids[:1] for ids in options], first)
    for cell, ids in enumerate(options, first):
        following = [*ids[1:], end] if end is not None else ids[1:]
        if following:
            segment = growth.segment(ids[: len(following)], parent)
            for at, token in enumerate(following):
                growth.read_spellings(segment, at, [(token,)], cell)


class _Growth:
    """Lists that become a Branch's arrays."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.lengths: list[int] = []
        self.parents: list[int] = []
        self.blocks: list[int] = []
        self.reads: list[tuple[int, int, int]] = []
        self.columns: list[int] = []
        self.cells: list[int] = []

    def segment(self, tokens: Ids, parent: int, block: int = 1) -> int:
        self.tokens.extend(tokens)
        self.lengths.append(len(tokens))
        self.parents.append(parent)
        self.blocks.append(block)
        return len(self.lengths) - 1

    def read_spellings(self, segment: int, row: int, spellings: Sequence[Ids], first: int) -> None:
        """Read a row: `spellings` are the ids that may spell each of the cells from `first` on."""
        self.reads.append((segment, row, sum(map(len, spellings))))
        for cell, ids in enumerate(spellings, first):
            self.columns.extend(ids)
            self.cells.extend([cell] * len(ids))

    def branch(self, grids: tuple[CellGrid, ...]) -> QuestionBranch:
        reads = np.array(self.reads, np.int32)
        return QuestionBranch(
            tokens=np.array(self.tokens, np.int32),
            lengths=np.array(self.lengths, np.int32),
            parents=np.array(self.parents, np.int32),
            blocks=np.array(self.blocks, np.int32),
            read_segments=reads[:, 0],
            read_rows=reads[:, 1],
            widths=reads[:, 2],
            columns=np.array(self.columns, np.int32),
            cells=np.array(self.cells, np.int32),
            grids=grids,
        )


def _first_of_their_kind(replies: Sequence[Sequence[Ids]]) -> BoolArray:
    """For all orders' replies, end to end: whether no earlier reply of the order is the same."""
    found: list[bool] = []
    for options in replies:
        places: dict[tuple[int, ...], int] = {}
        found.extend(places.setdefault(tuple(ids), place) == place for place, ids in enumerate(options))
    return np.array(found, np.bool_)
