"""A request made ready for the engine: its tree, and the way back from what is read to answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ramet.decide.answers import PlannedQuestion
from ramet.decide.branch import QuestionBranch
from ramet.decide.canvas import NOISE, Canvas, CanvasSegment
from ramet.decide.priors import PlannedPriors
from ramet.decide.steps import Reading
from ramet.decision import Answer, Joint
from ramet.denoise.noise import Opening
from ramet.request import Confidence
from ramet.tree import WHOLE, IntArray, Reads, Tree


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """`tree` is what the engine runs; its first root, `trunk` rows, is the frame's head and the state: what a cache
    keeps. From row `mark` of it on it is likely to change when the state grows. `cells` [C] says which cell each column
    of the reads adds to; columns of one read with the same cell are spellings of one token. `joint`: which questions
    share canvases, where they do. `read`: what takes the canvases through several steps, where one is not all.
    `calibration`: the digest of the one that is loaded."""

    tree: Tree
    trunk: int
    mark: int
    cells: IntArray
    questions: tuple[PlannedQuestion, ...]
    priors: PlannedPriors
    confidence: Confidence
    joint: Joint | None = None
    read: Reading | None = None
    calibration: str | None = None

    @property
    def n_questions(self) -> int:
        return len(self.questions)

    def answers(self, reads: Reads) -> dict[str, Answer]:
        """Answers under the questions' names and in their order, from the tree's reads. What they say of priors is
        kept.

        A reply's log-probability is the plain sum of its tokens' own, in float64 and in a fixed
        order, so it does not depend on the other questions. Of the spellings of a token the likeliest counts.
        """
        logprobs = reads.logits.astype(np.float64)
        logprobs -= np.repeat(reads.logsumexp.astype(np.float64), np.diff(reads.offsets))
        is_first = np.diff(self.cells, prepend=-1) != 0  # of the spellings of a token
        is_first[reads.offsets[:-1]] = True
        tokens = np.flatnonzero(is_first)
        likeliest = np.maximum.reduceat(logprobs, tokens)
        cells = np.bincount(self.cells[tokens], weights=likeliest).astype(np.float64, copy=False)
        cells = self.priors.complete(cells)
        return {each.name: each.answer(cells, self.confidence) for each in self.questions}


@dataclass(frozen=True, slots=True)
class Subtree:
    """A trunk [T], whose rows see each other by `block`, and the branches behind it. With an empty trunk the branches
    are roots."""

    trunk: IntArray
    branches: Sequence[QuestionBranch]
    block: int = 1


def assemble(
    subtrees: Sequence[Subtree], canvas: Canvas | None = None, seed: int | None = None
) -> tuple[Tree, IntArray, list[CanvasSegment]]:
    """The tree, with a root for each subtree; each column's cell, numbered subtree by subtree; and the canvases.
    `canvas` is the one that branches end in, whose slots this fills with noise of the prompt and of `seed`."""
    layout, blanks = _Layout(), list[CanvasSegment]()
    for subtree in subtrees:
        trunk = layout.root(subtree.trunk, subtree.block) if len(subtree.trunk) else -1
        firsts = [layout.branch(branch, trunk) for branch in subtree.branches]
        if canvas is not None:
            blanks += _blanks(Opening(subtree.trunk, seed), zip(firsts, subtree.branches, strict=True))
    tree = layout.tree()
    if canvas is not None:
        for blank in blanks:
            at, n = tree.starts[blank.segment], tree.lengths[blank.segment]
            blank.fill(tree.tokens[at : at + n], canvas.denoising.vocab_size)
    return tree, layout.cells(), blanks


def _blanks(opening: Opening, branches: Iterable[tuple[int, QuestionBranch]]) -> Iterator[CanvasSegment]:
    """The canvases of branches behind a trunk. Each branch comes with the number of its first segment in the tree."""
    for first, branch in branches:
        starts, numbers = [0, *np.cumsum(branch.lengths).tolist()], Counter[int]()
        for segment in np.flatnonzero(branch.blocks == WHOLE).tolist():
            above = int(branch.parents[segment])
            prompt, own = (branch.tokens[starts[s] : starts[s + 1]] for s in (above, segment))
            slots = np.flatnonzero(own == NOISE).astype(np.int32)
            yield CanvasSegment(first + segment, slots, opening.noise(prompt), numbers[above])
            numbers[above] += 1


class _Layout:
    """Pieces laid end to end; one concatenation for each of the tree's arrays at the end."""

    def __init__(self) -> None:
        self._tokens: list[IntArray] = []
        self._lengths: list[IntArray] = []
        self._parents: list[IntArray] = []
        self._blocks: list[IntArray] = []
        self._branches: list[QuestionBranch] = []
        self._bases: list[int] = []
        self._n_segments = 0

    def root(self, ids: IntArray, block: int) -> int:
        self._tokens.append(ids)
        self._lengths.append(np.array([len(ids)], np.int32))
        self._parents.append(np.array([-1], np.int32))
        self._blocks.append(np.array([block], np.int32))
        self._n_segments += 1
        return self._n_segments - 1

    def branch(self, branch: QuestionBranch, trunk: int) -> int:
        """Add a branch behind `trunk`, and return the number of its first segment."""
        self._tokens.append(branch.tokens)
        self._blocks.append(branch.blocks)
        self._lengths.append(branch.lengths)
        self._parents.append(np.where(branch.parents < 0, trunk, branch.parents + self._n_segments))
        self._branches.append(branch)
        self._bases.append(self._n_segments)
        self._n_segments += len(branch.lengths)
        return self._bases[-1]

    def tree(self) -> Tree:
        branches = self._branches
        n_reads = [len(branch.widths) for branch in branches]
        read_segments = np.concatenate([branch.read_segments for branch in branches])
        widths = np.concatenate([branch.widths for branch in branches])
        return Tree(
            tokens=np.concatenate(self._tokens),
            lengths=np.concatenate(self._lengths),
            parents=np.concatenate(self._parents).astype(np.int32),
            blocks=np.concatenate(self._blocks),
            read_segments=(read_segments + np.repeat(self._bases, n_reads)).astype(np.int32),
            read_rows=np.concatenate([branch.read_rows for branch in branches]),
            normalize=np.ones(len(read_segments), np.bool_),
            columns=np.concatenate([branch.columns for branch in branches]),
            offsets=np.concatenate([[0], np.cumsum(widths)]).astype(np.int32),
        )

    def cells(self) -> IntArray:
        n_columns = [len(branch.cells) for branch in self._branches]
        first = np.cumsum([0, *(branch.n_cells for branch in self._branches)])[:-1]
        numbers = np.concatenate([branch.cells for branch in self._branches])
        cells: IntArray = (numbers + np.repeat(first, n_columns)).astype(np.int32)
        return cells
