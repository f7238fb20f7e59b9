"""Packing: what fits of a job goes into a round, and its rows into pages. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ramet.cache.pages import Pages, Path
from ramet.engine.batch import Batch, Part
from ramet.engine.cutting import above_canvas, cut, cut_at, first_read, fitting, forks, leads, left_behind, n_rows
from ramet.engine.job import Job, Task
from ramet.tree import WHOLE, IntArray
from ramet.units import Unit

MIN_PIECE = 64  # a piece of a trunk of fewer rows than this, or than a quarter of a round, waits for the next round
_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Where a unit that sees n_context rows of its path keeps what it computes: slots of rows, the page to copy first,
    and slots of states by the position behind which they are."""

    n_context: int
    slots: IntArray
    copy: tuple[int, int] | None
    states: list[tuple[int, int]]


class Packer:
    """A job that fits a round runs in one piece. A larger one is cut: its trunk goes into pages piece by piece, then
    its branches follow in groups, each seeing the pages. The prompt of a reply goes into pages whole.

    `grain`: a root is cut at multiples of it, counted from the root's start.
    """

    def __init__(self, pages: Pages, max_round_tokens: int, grain: int) -> None:
        assert grain <= max_round_tokens
        self.pages, self.max_round_tokens, self.grain = pages, max_round_tokens, grain
        self.min_piece = min(MIN_PIECE, -(-max_round_tokens // 4))

    def is_cut(self, job: Job) -> bool:
        """Whether a tree takes several rounds."""
        return job.reply is None and (job.two_steps or job.n_tokens > self.max_round_tokens)

    def expect(self, job: Job) -> None:
        """Note the keys of a job's pages."""
        if job.tree is None:
            job.keys = ()
            return
        block = int(job.tree.blocks[0])
        if self.pages.page_size % block:
            job.n_keep, job.marks = 0, ()
        job.keys = self.pages.keys(job.tree.tokens[: job.n_keep], job.salt, block)

    def n_due(self, job: Job) -> int:
        """Rows that a job which has not begun has to compute, at most: none of what is kept of its trunk."""
        if self.pages.recurrent:  # which continues at checkpoints alone
            return job.n_tokens
        size = self.pages.page_size
        return job.n_tokens - min(self.pages.reach(job.keys), _n_free_of_reads(job) // size * size)

    def resume(self, job: Job) -> None:
        """Make tasks of the whole tree, less what the index holds of its leading rows."""
        if job.tree is None:
            job.tasks = []
            return
        tree = job.tree
        path = self.pages.match(job.keys[: _n_free_of_reads(job) // self.pages.page_size])
        job.n_cached = path.length
        if self.pages.recurrent:
            self._mark_parting(job)
        job.tasks = self._left(job, Task(tree, Path(), 0, len(tree.lengths)), path)

    def advance(self, job: Job, batch: Batch, limit: int) -> bool:
        """Bring what fits of a job into the round; what depends on this round waits in its part. False where a piece
        found no page, or no slot.

        A round gets at most one piece of a trunk, and its branches go before its siblings: so a job never holds more
        pages than admission promises it.
        """
        assert job.tasks
        if leads(job.tasks[0]) and job.tasks[0].path.length < job.n_keep:
            (batch.leading if job.reply or self.is_cut(job) else batch.whole).append(job)
        left = min(limit, batch.left)
        while job.tasks:
            task = job.tasks[0]
            held = above_canvas(task) if job.two_steps else 0
            last = 0 if held or job.reply is not None else fitting(task, left)
            if not last:
                return self._piece(job, batch, task, left, held or task.first + 1)
            left -= self._whole(job, batch, task, last)
        return True

    def take_spare(self) -> int | None:
        """A slot for a recurrent state that is still to come; -1 where the model has none, None where all are held."""
        return self.pages.take_state() if self.pages.recurrent else -1

    def let_go(self, part: Part) -> None:
        """Give back what a part holds until its round's end."""
        self.pages.release(part.path)
        self._drop(part.states)

    def release(self, job: Job) -> None:
        """Give back what a job holds outside rounds."""
        for task in job.tasks or []:
            self.pages.release(task.path)
        job.tasks = []

    def _mark_parting(self, job: Job) -> None:
        """A checkpoint where the job parts from what the index has: what two requests share a third may share too."""
        parting = self.pages.reach(job.keys) // self.grain * self.grain
        if parting > job.n_cached:
            job.marks = tuple(sorted({*job.marks, parting}))

    def _left(self, job: Job, task: Task, path: Path) -> list[Task]:
        """What is left of a task once `path` holds more rows of its first path. Takes `path` over."""
        tree, tasks = task.tree, []
        if job.reply is not None and path.length == tree.n_tokens:
            return [Task(tree, path, task.last, task.last)]
        for first, last, skip in left_behind(task, path.length - int(tree.origins[task.first])):
            length = int(tree.origins[first]) + skip
            above = task.path if length < path.length and length <= task.path.length else path  # its state, if any
            tasks.append(Task(tree, self.pages.fork(above, length), first, last, skip))
        self.pages.release(path)
        return tasks

    def _whole(self, job: Job, batch: Batch, task: Task, last: int) -> int:
        """Bring in the task's subtrees before segment `last`. The trunk's rows are kept where places are free. How many
        rows that were."""
        assert job.tasks is not None
        rest = [] if last == task.last else [Task(task.tree, self.pages.fork(task.path), last, task.last)]
        job.tasks[:1] = rest
        n_context, states = task.path.length, list[tuple[int, int]]()
        n_keep = job.n_keep // self.pages.page_size * self.pages.page_size if leads(task) else 0
        if self.pages.recurrent:
            states = self._checkpoints(job, n_context, n_keep + 1)
            n_keep = states[-1][0] if states else 0
        room = self.pages.extend(task.path, n_keep - n_context) if n_keep > n_context else None
        if room is None:
            self._drop(states)
            states = []
        n = n_rows(task, last)
        part = Task(task.tree, task.path, task.first, last, task.skip)
        self._add(job, batch, part, n, _Kept(n_context, *(room or (_NONE, None)), states), [])
        return n

    def _piece(self, job: Job, batch: Batch, task: Task, left: int, last: int) -> bool:
        """Bring the first path, its segments before `last`, or as many rows of its first root as fit, into pages for
        all that sees them, if there is room in round, pages and states. Few rows wait for the next round, unless
        nothing else goes into this one."""
        assert job.tasks is not None
        n_root, n_context = int(task.tree.lengths[task.first]) - task.skip, task.path.length
        n = n_rows(task, last)
        if n > left:
            n, last = cut_at(task, min(left, n_root), self.grain), task.first + 1
        if n < (min(self.min_piece, n_root) if batch.has_like(job) else 1):
            return True
        end = self.take_spare()
        if end is None:
            return False
        is_fork = int(task.tree.behind[task.first]) < task.last
        path = self.pages.fork(task.path) if is_fork else task.path
        room = self.pages.extend(path, n)
        if room is None:
            if end >= 0:
                self.pages.drop_state(end)
            if is_fork:
                self.pages.release(path)
            return False
        job.tasks.pop(0)
        then = self._left(job, task, self.pages.fork(path, state=end))
        if is_fork:
            self.pages.release(task.path)
        states = self._checkpoints(job, n_context, path.length) if end >= 0 and leads(task) else []
        if end >= 0:
            states.append((path.length, self.pages.hold_state(end)))
        part = Task(task.tree, path, task.first, last, task.skip)
        self._add(job, batch, part, n, _Kept(n_context, *room, states), then)
        return True

    def _checkpoints(self, job: Job, first: int, last: int) -> list[tuple[int, int]]:
        """The job's marks m with first < m < last, and a slot for each, as far as there are any."""
        states: list[tuple[int, int]] = []
        for mark in job.marks:
            slot = self.pages.take_state() if first < mark < last else None
            if slot is not None:
                states.append((mark, slot))
        return states

    def _drop(self, states: list[tuple[int, int]]) -> None:
        for _, slot in states:
            self.pages.drop_state(slot)

    def _add(self, job: Job, batch: Batch, task: Task, n: int, kept: _Kept, then: list[Task]) -> None:
        tree, places = cut(task, n)
        job.is_split |= job.is_begun and int(tree.blocks[0]) == WHOLE
        unit = Unit(
            tree,
            context=np.array(task.path.pages[: -(-kept.n_context // self.pages.page_size)], np.int32),
            n_context=kept.n_context,
            slots=kept.slots,
            forks=forks(task),
            continues=task.skip > 0,
            state=task.path.state if kept.n_context else -1,
            leaves=np.array([(at - kept.n_context - 1, slot) for at, slot in kept.states], np.int32).reshape(-1, 2),
        )
        n_keep = min(job.n_keep, task.path.length) if leads(task) else 0
        batch.copies.extend([kept.copy] if kept.copy else [])
        batch.add(unit, Part(job, places, task.path, kept.states, n_keep, then))


def _n_free_of_reads(job: Job) -> int:
    """Leading rows of which nothing is read: they may come from pages. A reply reads nothing of its prompt."""
    return job.n_tokens if job.reply is not None else first_read(job.whole)
