"""One question's part of a tree, as arrays that can be laid behind any trunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramet.tree import WHOLE, BoolArray, IntArray

Ids = Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The segments below a trunk that belong to one question, depth first, and what is read of them.

    A cell is one option in one order (number order * n_options + option); its log-probability is
    the sum over the columns that carry its number. tokens [T]; lengths, parents, blocks [S] (parents count
    from the branch's first segment, -1 is the trunk); read_segments, read_rows, widths [R] (columns
    of each read); columns, cells [C]; `distinct` [n_cells] is False for an option whose reply an
    earlier one has already, so that their mass counts once.
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
    distinct: BoolArray
    n_orders: int
    n_options: int

    @property
    def n_cells(self) -> int:
        return self.n_orders * self.n_options

    @property
    def n_entries(self) -> int:
        """What it weighs when kept, in array entries."""
        return len(self.tokens) + 3 * len(self.lengths) + 3 * len(self.widths) + 2 * len(self.columns)


def grow(
    prompts: Sequence[Ids], replies: Sequence[Sequence[Ids]], end: int | None, canvases: Sequence[Ids] = ()
) -> Branch:
    """A branch from the ids of each order's prompt and of each option's reply in it.

    The first token of every reply is read from the prompt's last row, or from the first row of each of the `canvases`
    behind it, whose rows see each other; each is an order of its own then. What follows it, the other tokens and `end`
    (None: a label, which need not end the reply), is read from a segment of the reply's own.
    """
    growth = _Growth()
    for prompt, options in zip(prompts, replies, strict=True):
        parent = growth.segment(prompt, -1)
        below = [(growth.segment(canvas, parent, WHOLE), 0) for canvas in canvases]
        for segment, row in below or [(parent, len(prompt) - 1)]:
            _read_replies(growth, segment, row, options, end)
    return growth.branch(len(prompts) * max(1, len(canvases)))


def _read_replies(growth: _Growth, parent: int, row: int, options: Sequence[Ids], end: int | None) -> None:
    """Of one order, the first tokens in a row of a segment, the others in segments below it."""
    first = len(growth.seen)
    growth.read(parent, row, [ids[0] for ids in options], range(first, first + len(options)))
    growth.seen.extend(map(tuple, options))
    for cell, ids in enumerate(options, first):
        following = [*ids[1:], end] if end is not None else ids[1:]
        if following:
            segment = growth.segment(ids[: len(following)], parent)
            for at, token in enumerate(following):
                growth.read(segment, at, (token,), (cell,))


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
        self.seen: list[tuple[int, ...]] = []

    def segment(self, tokens: Ids, parent: int, block: int = 1) -> int:
        self.tokens.extend(tokens)
        self.lengths.append(len(tokens))
        self.parents.append(parent)
        self.blocks.append(block)
        return len(self.lengths) - 1

    def read(self, segment: int, row: int, columns: Ids, cells: Ids) -> None:
        self.reads.append((segment, row, len(columns)))
        self.columns.extend(columns)
        self.cells.extend(cells)

    def branch(self, n_orders: int) -> Branch:
        reads = np.array(self.reads, np.int32)
        n_options = len(self.seen) // n_orders
        return Branch(
            tokens=np.array(self.tokens, np.int32),
            lengths=np.array(self.lengths, np.int32),
            parents=np.array(self.parents, np.int32),
            blocks=np.array(self.blocks, np.int32),
            read_segments=reads[:, 0],
            read_rows=reads[:, 1],
            widths=reads[:, 2],
            columns=np.array(self.columns, np.int32),
            cells=np.array(self.cells, np.int32),
            distinct=_first_of_its_kind(self.seen, n_options),
            n_orders=n_orders,
            n_options=n_options,
        )


def _first_of_its_kind(replies: Sequence[tuple[int, ...]], n_options: int) -> BoolArray:
    found = [True] * len(replies)
    for begin in range(0, len(replies), n_options):
        met: set[tuple[int, ...]] = set()
        for i in range(begin, begin + n_options):
            found[i] = replies[i] not in met
            met.add(replies[i])
    return np.array(found, np.bool_)
