"""Job: one piece of work in the queue, whether a tree, a read of several steps or a reply."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramet.cache.pages import Path
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.reply import Reply
from ramet.tree import MAX_ANCESTORS, WHOLE, FloatArray, IntArray, Reads, Segment, Stepped, Tree

STATES_A_JOB = MAX_ANCESTORS + 2  # that a job which is cut may hold at once: one a level, and the next piece's


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Segments [first, last) of a tree: sibling subtrees that continue `path`. Of the first root, `skip` rows are in
    the path already. Holds the path. With no segments, `path` is all that is left: a reply continues it."""

    tree: Tree
    path: Path
    first: int
    last: int
    skip: int = 0

    @property
    def is_empty(self) -> bool:
        return self.first == self.last


@dataclass(slots=True, eq=False)
class Job:
    """A submitted tree and the tasks that are left of it; or one of the trees of `read`; or the rows of a prompt behind
    which `reply` is written (no tree where there are none).

    `n_keep` leading rows, of the first root, go into the prefix index, under `salt`; of a model with recurrent layers
    as far as the last of `marks`, the positions at which checkpoints are kept. A root whose blocks do not end with
    pages, or that is WHOLE, leaves nothing there: what its rows are depends on rows behind them. `keys` are those of
    its pages in the index. `future` gets the outcome or the error. A job that is to run `alone` shares no round. With
    `two_steps` canvases wait until what they follow is in pages. Both hold for one tree of a read, not for the next.
    """

    tree: Tree | None
    future: Future[Any]
    n_keep: int = 0
    marks: tuple[int, ...] = ()
    salt: str = ""
    read: MultiStepRead | None = None
    two_steps: bool = False
    alone: bool = False
    reply: Reply | None = None
    n_cached: int = 0  # rows of this tree that were found in pages
    n_resumed: int | None = None  # n_cached of the first tree of a read, once it is complete
    n_rounds: int = 0
    is_begun: bool = False  # a part of this tree is computed
    is_split: bool = False  # a canvas was read in a later round than what it follows
    tasks: list[Task] | None = None  # None: not started
    queued_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0  # when its first round began
    pass_s: float = 0.0  # seconds of its rounds
    keys: Sequence[bytes] = ()
    logits: FloatArray = field(init=False)
    logsumexp: FloatArray = field(init=False)
    stepped: tuple[Stepped, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._begin(self.tree)

    @classmethod
    def of(cls, reply: Reply) -> Job:
        """To write a reply. What is kept of its prompt, `expect` says."""
        return cls(None, reply.future, salt=reply.salt, reply=reply)

    def proceed(self, tree: Tree | None, n_keep: int, marks: tuple[int, ...]) -> None:
        """Go on with the next tree of the read; with the rows before the place at which a reply begins again."""
        self.two_steps = self.alone = False
        self.n_keep, self.marks = n_keep, marks
        self._begin(tree)

    def _begin(self, tree: Tree | None) -> None:
        self.tree, self.tasks, self.is_begun, self.stepped = tree, None, False, ()
        self.logits = np.empty(0 if tree is None else len(tree.columns), np.float32)
        self.logsumexp = np.empty(0 if tree is None else len(tree.read_rows), np.float32)

    def take(self, places: IntArray, reads: Reads) -> None:
        """Put the results of some of the tree's reads in their places. Steps come in the tree's order."""
        if self.reply is not None:
            return
        self.stepped += reads.stepped
        self.logsumexp[places] = reads.logsumexp
        offsets = self.whole.offsets
        sizes = np.diff(offsets)[places]
        at = np.repeat(offsets[places] - reads.offsets[:-1], sizes) + np.arange(len(reads.logits))
        self.logits[at] = reads.logits

    def restart(self, *, alone: bool) -> None:
        """Forget all progress with this tree."""
        self.tasks, self.stepped, self.is_begun, self.alone = None, (), False, alone

    @property
    def whole(self) -> Tree:
        """The tree, of a job that has one."""
        assert self.tree is not None
        return self.tree

    @property
    def reads(self) -> Reads:
        """The results of the tree, once it is complete."""
        return Reads(self.logits, self.logsumexp, self.whole.offsets, self.stepped)

    @property
    def n_tokens(self) -> int:
        """Rows of the tree."""
        return 0 if self.tree is None else self.tree.n_tokens

    @property
    def max_position(self) -> int:
        """One more than the highest position of any row of the tree."""
        return 0 if self.tree is None else self.tree.max_position

    @property
    def is_under_way(self) -> bool:
        """Whether trees of its read are complete, and others follow."""
        return self.n_resumed is not None

    @property
    def is_long(self) -> bool:
        """Whether more trees may follow its first one."""
        return self.read is not None and self.read.limits.n_trees > 1

    @property
    def is_ready(self) -> bool:
        """Whether all rows before a reply's beginning are in pages."""
        return self.reply is not None and (self.tree is None or (bool(self.tasks) and self.tasks[0].is_empty))  # type: ignore[index]

    @property
    def has_canvas(self) -> bool:
        return self.tree is not None and bool((self.tree.blocks == WHOLE).any())


def prompt_of(reply: Reply, block: int) -> Tree | None:
    """The rows before the place at which a reply begins, of which `block` see each other."""
    n = reply.beginning.start
    return Tree.of([Segment(reply.known(n), block=block)]) if n else None
