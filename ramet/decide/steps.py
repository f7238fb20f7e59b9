"""Reads of several steps: what is in a canvas' slots is denoised further before they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramet.decide.canvas import CanvasSegment
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.draft import Draft
from ramet.tree import IntArray, Limits, Reads, Tree


class Reading:
    """The steps of a tree whose canvases take `n_steps` steps at most, all but their slots pinned.

    Each canvas is on its own: it is read in its last step, which comes early where it has settled, and is not in
    the trees after that. `reads`: those of the whole tree, complete when the last step has ended.
    """

    def __init__(self, tree: Tree, blanks: Sequence[CanvasSegment], denoising: CanvasConfig, n_steps: int) -> None:
        self._whole = tree
        self._open = {blank.segment: _draft(tree, blank, denoising, n_steps) for blank in blanks}
        self._due = np.zeros(0, np.intp)  # which reads of the whole tree are those of the last one
        logits, logsumexp = np.empty(len(tree.columns), np.float32), np.empty(len(tree.read_rows), np.float32)
        self.reads = Reads(logits, logsumexp, tree.offsets)
        self.limits = Limits(n_steps, tree.n_tokens, tree.max_position)
        self._tree = self._grown()  # here, where the caller plans: for thousands of canvases it takes a while

    def tree(self) -> Tree:
        """The canvases that are not finished, with their steps, and all above them; reads of those that may be."""
        return self._tree

    def _grown(self) -> Tree:
        whole, canvases = self._whole, np.array(list(self._open))
        ending = [segment for segment, draft in self._open.items() if draft.may_end]
        is_due = np.isin(whole.read_segments, ending)
        self._due = np.flatnonzero(is_due)
        kept = whole.parents < 0
        kept[canvases] = kept[whole.parents[canvases]] = True
        place = (np.cumsum(kept) - 1).astype(np.int32)
        parents, widths, n_rows = whole.parents[kept], np.diff(whole.offsets), whole.lengths[canvases]
        n_columns = np.concatenate([widths[is_due], np.zeros(n_rows.sum(), np.int32)])
        return Tree(
            tokens=self._tokens()[np.repeat(kept, whole.lengths)],
            lengths=whole.lengths[kept],
            parents=np.where(parents < 0, -1, place[parents]),
            blocks=whole.blocks[kept],
            read_segments=np.concatenate([place[whole.read_segments[is_due]], np.repeat(place[canvases], n_rows)]),
            read_rows=np.concatenate([whole.read_rows[is_due], *(np.arange(n, dtype=np.int32) for n in n_rows)]),
            normalize=np.concatenate([whole.normalize[is_due], np.zeros(n_rows.sum(), np.bool_)]),
            columns=whole.columns[np.repeat(is_due, widths)],
            offsets=np.concatenate([[0], np.cumsum(n_columns)]).astype(np.int32),
            steps=tuple((int(place[segment]), draft.step()) for segment, draft in self._open.items()),
        )

    def take(self, reads: Reads) -> bool:
        """The results of the last tree; True when no canvas is left."""
        taken = zip(self._open.items(), reads.stepped, strict=True)
        ended = [segment for (segment, draft), stepped in taken if draft.take(stepped)]
        is_last = np.isin(self._whole.read_segments[self._due], ended)
        places, widths = self._due[is_last], np.diff(self._whole.offsets)
        columns = np.isin(np.repeat(np.arange(len(widths)), widths), places)
        self.reads.logsumexp[places] = reads.logsumexp[: len(is_last)][is_last]
        self.reads.logits[columns] = reads.logits[np.repeat(is_last, widths[self._due])]
        for segment in ended:
            del self._open[segment]
        if self._open:
            self._tree = self._grown()
        return not self._open

    def _tokens(self) -> IntArray:
        """Of the whole tree, with canvases as they are to be run."""
        tokens = self._whole.tokens.copy()
        for segment, draft in self._open.items():
            at = int(self._whole.starts[segment])
            tokens[at : at + len(draft.tokens)] = draft.tokens
        return tokens


def _draft(tree: Tree, blank: CanvasSegment, denoising: CanvasConfig, n_steps: int) -> Draft:
    at, n = int(tree.starts[blank.segment]), int(tree.lengths[blank.segment])
    pinned = np.setdiff1d(np.arange(n), blank.slots)
    tokens = tree.tokens[at : at + n]
    return Draft(denoising, blank.noise, blank.number, width=n, n_steps=n_steps, tokens=tokens, pinned=pinned.tolist())
