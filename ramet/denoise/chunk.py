"""Chunk: what a step asks of a reply's live blocks, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.tree import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows to be run, by block.

    tokens, positions [N]: a masked row holds the mask's id. Every row sees the `n_context` rows that the reply's path
    has in pages, and of the chunk the rows whose ``position // block`` is not greater than its own, as a segment's
    rows do. Since blocks ascend, those are the chunk's first ones. The keys of the first n_kept rows go behind the
    path's, in this order: a path's rows are ordered by when they were committed, block by block, and keys carry their
    positions. `read` [M] are the rows that are masked, ascending in position.
    """

    tokens: IntArray
    positions: IntArray
    block: int
    n_context: int
    n_kept: int
    read: IntArray

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.positions) >= max(1, self.n_kept)
        assert not len(self.read) or self.n_kept <= int(self.read[0])
