"""Which trees, how many rows of each: from queued trees to the units of a round. Knows no tensors.

A Job is one submitted tree; what is left of it is a list of Tasks, runs of sibling subtrees that
continue a Path of pages. A job that fits a round runs in one piece, and shares the roots that other jobs of the round
have too. A larger one is cut: its trunk in chunks into pages, then its branches in groups, each seeing the pages; one
whose trunk another is computing waits for it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramet.cache.pages import Pages, Path, n_common
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.replies import Part, Replies
from ramet.engine.reply import Reply
from ramet.merge import merge
from ramet.tree import MAX_ANCESTORS, WHOLE, FloatArray, IntArray, Reads, Stepped, Tree
from ramet.units import Unit

STATES_A_JOB = MAX_ANCESTORS + 2  # that a job which is cut may hold at once: one a level, and the next chunk's
MIN_CHUNK = 64  # a chunk of fewer rows than this, or than a quarter of a round, waits for the next round


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Segments [first, last) of a job's tree: sibling subtrees that continue `path`. Of the first
    root, `skip` rows are in the path already. Holds the path."""

    path: Path
    first: int
    last: int
    skip: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One submitted tree and what is left of it.

    `n_keep` leading rows, of its first root, go into the prefix index, under `salt`; of a model with recurrent layers
    as far as the last of `marks`, the positions at which checkpoints are kept. A root whose blocks do not end with
    pages, or that is WHOLE, leaves nothing there: what its rows are depends on rows behind them. `future` gets the
    outcome or the error; where there is a `course`, the tree is one of several. A job that is to run `alone` shares no
    round. `keys` are those of its pages in the index. With `two_steps` canvases wait until what they follow is in
    pages. Both are said of one tree, not of those that follow it in a course.
    """

    tree: Tree
    future: Future[Any]
    n_keep: int = 0
    marks: tuple[int, ...] = ()
    salt: str = ""
    course: MultiStepRead | None = None
    two_steps: bool = False
    alone: bool = False
    n_cached: int = 0  # rows of this tree that were found in pages
    n_resumed: int | None = None  # n_cached of the first tree of a course, once it is complete
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
        self._begin(self.tree, self.n_keep, self.marks)

    def proceed(self, tree: Tree, n_keep: int, marks: tuple[int, ...]) -> None:
        """With the next tree of the course."""
        self.two_steps = self.alone = False
        self._begin(tree, n_keep, marks)

    def _begin(self, tree: Tree, n_keep: int, marks: tuple[int, ...]) -> None:
        self.tree, self.tasks, self.is_begun, self.stepped = tree, None, False, ()
        self.n_keep, self.marks = n_keep, marks
        self.logits = np.empty(len(tree.columns), np.float32)
        self.logsumexp = np.empty(len(tree.read_rows), np.float32)

    def take(self, places: IntArray, reads: Reads) -> None:
        """Put the results of some of the tree's reads in their places. Steps come in the tree's order."""
        self.stepped += reads.stepped
        self.logsumexp[places] = reads.logsumexp
        sizes = np.diff(self.tree.offsets)[places]
        at = np.repeat(self.tree.offsets[places] - reads.offsets[:-1], sizes) + np.arange(len(reads.logits))
        self.logits[at] = reads.logits

    def restart(self, *, alone: bool) -> None:
        """Forget all progress with this tree."""
        self.tasks, self.stepped, self.is_begun, self.alone = None, (), False, alone

    @property
    def reads(self) -> Reads:
        return Reads(self.logits, self.logsumexp, self.tree.offsets, self.stepped)

    @property
    def is_under_way(self) -> bool:
        """Whether trees of its course are complete, and others follow."""
        return self.n_resumed is not None

    @property
    def is_long(self) -> bool:
        """Whether more trees may follow its first one."""
        return self.course is not None and self.course.limits.n_trees > 1

    @property
    def has_canvas(self) -> bool:
        return bool((self.tree.blocks == WHOLE).any())


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """A job's part of a unit: the places of its reads, what it holds until the commit (the path that it wrote or read,
    and slots of states by the position behind which they are), the leading rows for the prefix index, and the tasks
    that follow."""

    job: Job
    places: IntArray
    path: Path
    states: list[tuple[int, int]]
    n_keep: int
    then: list[Task]


@dataclass(slots=True, eq=False)
class Batch:
    """The units of a round, the shares of each, in the order of their reads, and the pages to copy before it.
    `leading` are the jobs that are cut and whose trunk is not in pages yet. `replies` is what it has of replies. Jobs
    get `room` rows of it, all in all."""

    units: list[Unit] = field(default_factory=list)
    shares: list[list[Share]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    leading: list[Job] = field(default_factory=list)
    n_tokens: int = 0
    replies: Part = field(default_factory=Part)
    room: int = 0
    _alike: dict[object, int] = field(default_factory=dict)
    _joined: dict[int, list[Tree]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to run."""
        return bool(self.n_tokens)

    @property
    def left(self) -> int:
        """Rows that jobs may still get."""
        return self.room - self.n_tokens

    @property
    def jobs(self) -> list[Job]:
        """Each once, in order."""
        return list({share.job: None for shares in self.shares for share in shares})

    def add(self, unit: Unit, share: Share) -> None:
        """Bring a unit in; one that begins like another, and keeps no more, joins it."""
        alike = _beginning(unit, share)
        at = self._alike.setdefault(alike, len(self.units))
        if at == len(self.units):
            self.units.append(unit)
            self.shares.append([share])
            self.n_tokens += unit.tree.n_tokens
            return
        self._joined.setdefault(at, [self.units[at].tree]).append(unit.tree)
        self.shares[at].append(replace(share, n_keep=0))  # the first of them keeps the rows for all
        self.n_tokens += unit.tree.n_tokens - int(unit.tree.lengths[0])

    def seal(self) -> None:
        """Merge the trees of the units that joined: they are complete."""
        for at, trees in self._joined.items():
            self.units[at] = replace(self.units[at], tree=merge(trees))
        self.n_tokens = sum(unit.tree.n_tokens for unit in self.units) + self.replies.n_tokens

    def split(self, results: list[Reads]) -> Iterator[tuple[Share, Reads]]:
        """Each share and its part of the units' reads."""
        for shares, reads in zip(self.shares, results, strict=True):
            if len(shares) == 1:
                yield shares[0], reads
                continue
            at = 0
            for share in shares:
                yield share, reads.part(at, at + len(share.places))
                at += len(share.places)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Where a unit that sees n_context rows of its path keeps what it computes: slots of rows, the page to copy first,
    and slots of states by the position behind which they are."""

    n_context: int
    slots: IntArray
    copy: tuple[int, int] | None
    states: list[tuple[int, int]]


class Scheduler:
    """First come, first served, under `max_round_tokens`. A job that is cut leaves half of a round to others, and so do
    the courses under way together, which take turns; a job that then finds no room has the next round first. Those that
    wait for pages or for a trunk are overtaken, but never by a job or a reply that needs the pages too; a further
    course begins where those under way, and their pages, leave room for it. Live replies are in every round, in half of
    it at most where others wait."""

    def __init__(
        self, pages: Pages, max_round_tokens: int, grain: int = 1, max_running: int | None = None,
        replies: Replies | None = None,
    ) -> None:  # fmt: skip
        """`grain`: a root is cut in chunks at multiples of it, counted from the root's start; no more than a round.
        `max_running`: jobs that are under way at once (None: as many as fit)."""
        assert grain <= max_round_tokens
        self.max_running = max_running or sys.maxsize
        self.pages, self.replies = pages, replies
        self.max_round_tokens = max_round_tokens
        self.min_chunk = min(MIN_CHUNK, -(-max_round_tokens // 4))
        self.grain = grain
        self.waiting: deque[Job] = deque()
        self.between: deque[Job] = deque()  # courses under way whose next tree waits
        self.running: list[Job] = []
        self._half = max(max_round_tokens // 2, grain)
        self._passed: Job | None = None  # found no room in the last round
        self.aloft: list[Batch] = []  # rounds that are under way: neither committed nor dropped

    def __len__(self) -> int:
        n_replies = len(self.replies) if self.replies is not None else 0
        return len(self.waiting) + len(self.between) + len(self.running) + n_replies

    def add(self, job: Job | Reply) -> None:
        """Behind those that wait, or behind the other courses that are between two trees."""
        if isinstance(job, Reply):
            assert self.replies is not None
            self.replies.add(job)
            return
        block = int(job.tree.blocks[0])
        if self.pages.page_size % block:
            job.n_keep, job.marks = 0, ()
        job.keys = self.pages.keys(job.tree.tokens[: job.n_keep], job.salt, block)
        (self.between if job.is_under_way else self.waiting).append(job)

    def next(self) -> Batch:
        """The next round's units; none when there is nothing to do but to wait for a round under way."""
        if self.aloft and self.replies:
            return Batch()  # what replies do next depends on it, and what else there is joins them
        batch = self._made()
        if not batch and self.replies:
            batch = self._made()  # with the pages that replies have given up
        if batch:
            self.aloft.append(batch)
        return batch

    def _made(self) -> Batch:
        batch, flying = Batch(room=self.max_round_tokens), self._flying()
        if self.replies:
            self.replies.promised = self._promises()
        landed = [job for job in self.running if job not in flying]
        alone = next((job for job in (*landed, *self.between, *self.waiting) if job.alone), None)
        if alone is None or not self._run_alone(alone, batch):
            if not (self.replies and self.replies.alone):
                self._start_passed(batch)
            batch.room -= self._encode(batch)
            share = self._half if self.waiting or self.between else self.max_round_tokens
            for job in landed:
                self._advance(job, batch, share)
            self._go_on(batch)
            self._start_waiting(batch)
            batch.seal()
            self._step(batch)
        return batch

    def _encode(self, batch: Batch) -> int:
        """Bring in rows of prompts of replies, and tell how many rows are to be left to the live ones. Where jobs
        wait, or run, they get half of the rest."""
        others = bool(self.waiting or self.between or self.running)
        if not self.replies or not (others or self.replies.n_waiting):  # live ones alone: all of it is theirs
            return 0
        alone, left = self.replies.alone, batch.left
        reserved = min(self.replies.n_rows, self._half)
        room = left - reserved
        if alone is None and others:
            room = max(room // 2, min(room, self.replies.grain))
        self.replies.encode(batch.replies, room if alone is None else left)
        batch.n_tokens += batch.replies.n_tokens
        # One that is to be alone has the round, unless it waits for what others hold.
        return left if alone is not None and (batch.replies.encodings or alone.place >= 0) else reserved

    def _step(self, batch: Batch) -> None:
        """Bring in the live replies."""
        if self.replies:
            self.replies.step(batch.replies, self.max_round_tokens - batch.n_tokens, batch.n_tokens)
            batch.seal()

    def _run_alone(self, job: Job, batch: Batch) -> bool:
        """False where it waits for pages that others hold."""
        if job in self.running:
            self._advance(job, batch, self.max_round_tokens)
        elif self._is_cut(job) and self._blocked(job):
            return False
        else:
            self._start(job, batch)
        return bool(batch.units)

    def _start_passed(self, batch: Batch) -> None:
        """Bring in the job that found no room in the last round: running ones take half of each."""
        job, self._passed = self._passed, None
        if job is not None and (job in self.waiting or job in self.between):
            self._start(job, batch)

    def _go_on(self, batch: Batch) -> None:
        """Bring in the courses under way, in turn, to half of a round where others wait that take one round."""
        left = self.max_round_tokens if all(job.is_long for job in self.waiting) else self._half
        for job in list(self.between):
            n_due = self._n_due(job)
            held = self._is_cut(job) and self._blocked(job)
            if job.alone or held or self._awaits(job, batch) or (n_due > left and batch.units):
                continue
            if self._start(job, batch):
                left -= n_due
            elif n_due > self._half:  # as of one whose pages were given up
                self._passed = job

    def _start_waiting(self, batch: Batch) -> None:
        """Bring in those that wait, in their order."""
        blocked, crowded = any(map(self._is_cut, self.between)), False
        for job in list(self.waiting):
            if len(self.running) + len(self.between) >= self.max_running:
                break
            is_cut = self._is_cut(job)
            blocked = blocked or (is_cut and self._blocked(job))
            crowded = crowded or (job.is_long and self._crowded(job))
            if job.alone or (blocked and is_cut) or (crowded and job.is_long) or self._awaits(job, batch):
                continue
            if self._start(job, batch):
                continue
            if not job.is_long:
                self._passed = None if is_cut else job
                break
            crowded = True

    def _crowded(self, job: Job) -> bool:
        """Whether a course had better begin when another has ended: not all of those under way have room in this
        round, or their pages and its own are more than there are, so that each would drive out another's."""
        others = [other for other in self.running if other.is_long]
        n_pages = sum(self.n_pages_for(each.tree.max_position) for each in (*others, job))
        return bool(self.between) or (bool(others) and n_pages > self.pages.n_pages)

    def commit(self, batch: Batch, results: list[Reads]) -> list[Job]:
        """Take the results of a round in; returns the jobs that are complete."""
        self.aloft.remove(batch)
        for share, reads in batch.split(results):
            job = share.job
            job.is_begun = True
            job.take(share.places, reads)
            if share.n_keep:
                self.pages.keep(job.keys[: share.n_keep // self.pages.page_size], share.path, share.states)
            self._let_go(share)
            assert job.tasks is not None
            job.tasks[:0] = share.then
        for job in batch.jobs:
            job.n_rounds += 1
        done = [job for job in batch.jobs if not job.tasks]
        for job in done:
            self.running.remove(job)
        return done

    def drop(self, jobs: list[Job], batch: Batch | None = None) -> None:
        """End jobs, with what they hold in `batch` if a round of theirs did not come to its commit."""
        if batch is not None:
            self.aloft.remove(batch)
            if self.replies is not None:
                self.replies.restart(batch.replies)
        for share in (share for shares in (batch.shares if batch else []) for share in shares):
            self._let_go(share)
            for task in share.then:
                self.pages.release(task.path)
        for job in jobs:
            for task in job.tasks or []:
                self.pages.release(task.path)
            job.tasks = []
            next(queue for queue in (self.running, self.between, self.waiting) if job in queue).remove(job)

    def cancelled(self) -> list[Job | Reply]:
        """Remove and return the jobs and replies whose callers have gone, those of rounds under way excepted."""
        flying = self._flying()
        gone = [j for j in (*self.waiting, *self.between, *self.running) if j.future.cancelled() and j not in flying]
        self.drop(gone)
        return [*gone, *(self.replies.cancelled([b.replies for b in self.aloft]) if self.replies else [])]

    def abandon(self) -> list[Job | Reply]:
        """Remove and return all jobs and replies."""
        for batch in list(self.aloft):
            self.drop([], batch)
        jobs: list[Job] = [*self.waiting, *self.between, *self.running]
        self.drop(jobs)
        return [*jobs, *(self.replies.abandon() if self.replies else [])]

    def _flying(self) -> set[Job]:
        """The jobs of rounds under way: what follows in them waits for the commit."""
        return {job for batch in self.aloft for job in batch.jobs}

    def n_pages_for(self, max_position: int) -> int:
        """Pages that a tree may need at once when it is cut: its longest path, and a copy at each fork."""
        return -(-max_position // self.pages.page_size) + MAX_ANCESTORS

    def _let_go(self, share: Share) -> None:
        self.pages.release(share.path)
        self._drop(share.states)

    def _is_cut(self, job: Job) -> bool:
        return job.two_steps or job.tree.n_tokens > self.max_round_tokens

    def _promises(self) -> list[tuple[float, int]]:
        """Pages that jobs which are cut may need, those under way and the first of those that wait, each with the time
        from which on nobody else gets them."""
        due = next(filter(self._is_cut, (*self.between, *self.waiting)), None)
        running = [(0.0, self.n_pages_for(job.tree.max_position)) for job in self.running if self._is_cut(job)]
        return running if due is None else [*running, (due.queued_at, self.n_pages_for(due.tree.max_position))]

    def _blocked(self, job: Job) -> bool:
        """A job to be cut waits until the pages and states that it may need are not promised to another."""
        if self.replies and self.replies.lacks_pages_since < job.queued_at:
            return True
        promised = [self.n_pages_for(j.tree.max_position) for j in self.running if self._is_cut(j)]
        n_pages, n_states = (self.replies.n_pages, self.replies.n_states) if self.replies else (0, 0)
        if self.pages.recurrent and (len(promised) + 1) * STATES_A_JOB + n_states > self.pages.n_states:
            return True
        return n_pages + sum(promised) + self.n_pages_for(job.tree.max_position) > self.pages.n_pages

    def _awaits(self, job: Job, batch: Batch) -> bool:
        """Whether another job is computing, in chunks, more of this one's trunk than is kept."""
        for other in (job for each in (batch, *self.aloft) for job in each.leading):
            n = n_common(job.keys, other.keys)
            if n * self.pages.page_size >= self.min_chunk and job.keys[n - 1] not in self.pages:
                return True
        return False

    def _start(self, job: Job, batch: Batch) -> bool:
        """Bring a waiting job into this round. False when the round is full."""
        left = batch.left
        if left < (self.min_chunk if self._is_cut(job) else self._n_due(job)):
            return False
        job.tasks = self._resume(job)
        (self.between if job.is_under_way else self.waiting).remove(job)
        self.running.append(job)
        self._advance(job, batch, left)
        return True

    def _n_due(self, job: Job) -> int:
        """Rows that a job which has not begun will have to compute, at most: what is kept of its trunk is none."""
        if self.pages.recurrent:  # which continues at checkpoints alone
            return job.tree.n_tokens
        size = self.pages.page_size
        return job.tree.n_tokens - min(self.pages.reach(job.keys), _first_read(job.tree) // size * size)

    def _resume(self, job: Job) -> list[Task]:
        """The whole tree, less what the index holds of its leading rows."""
        tree = job.tree
        path = self.pages.match(job.keys[: _first_read(tree) // self.pages.page_size])
        job.n_cached = path.length
        if self.pages.recurrent:
            self._mark_parting(job)
        return self._behind(tree, Task(Path(), 0, len(tree.lengths)), path)

    def _mark_parting(self, job: Job) -> None:
        """A checkpoint where the job parts from what the index has: what two requests share a third may share too."""
        parting = self.pages.reach(job.keys) // self.grain * self.grain
        if parting > job.n_cached:
            job.marks = tuple(sorted({*job.marks, parting}))

    def _behind(self, tree: Tree, task: Task, path: Path) -> list[Task]:
        """What is left of a task once `path` holds more rows of its first path. Takes `path` over."""
        tasks = []
        for first, last, skip in _behind(tree, task, path.length - int(tree.origins[task.first])):
            length = int(tree.origins[first]) + skip
            above = task.path if length < path.length and length <= task.path.length else path  # its state, if any
            tasks.append(Task(self.pages.fork(above, length), first, last, skip))
        self.pages.release(path)
        return tasks

    def _advance(self, job: Job, batch: Batch, limit: int) -> None:
        """Bring what fits of a job into the round; what depends on this round waits in its share.

        At most one chunk a round, and its branches go before its siblings: so a job never holds more pages than
        `n_pages_for` promises.
        """
        assert job.tasks
        if self._is_cut(job) and _leads(job.tree, job.tasks[0]) and job.tasks[0].path.length < job.n_keep:
            batch.leading.append(job)
        left = min(limit, batch.left)
        while job.tasks:
            first = job.tasks[0].first
            held = _above_canvas(job.tree, first) if job.two_steps else 0
            last = 0 if held else _fitting(job.tree, job.tasks[0], left)
            if not last:
                self._chunk(job, batch, job.tasks[0], left, held or first + 1)
                return
            left -= self._whole(job, batch, job.tasks[0], last)

    def _whole(self, job: Job, batch: Batch, task: Task, last: int) -> int:
        """The task's subtrees before segment `last`. The trunk's rows are kept where places are free."""
        assert job.tasks is not None
        job.tasks[:1] = [] if last == task.last else [Task(self.pages.fork(task.path), last, task.last)]
        part, n_context, states = Task(task.path, task.first, last, task.skip), task.path.length, []
        n_keep = job.n_keep // self.pages.page_size * self.pages.page_size if _leads(job.tree, task) else 0
        if self.pages.recurrent:
            states = self._checkpoints(job, n_context, n_keep + 1)
            n_keep = states[-1][0] if states else 0
        room = self.pages.extend(task.path, n_keep - n_context) if n_keep > n_context else None
        if room is None:
            self._drop(states)
            states = []
        n_rows = _n_rows(job.tree, task.first, last, task.skip)
        self._add(job, batch, part, n_rows, _Kept(n_context, *(room or (_NONE, None)), states), [])
        return n_rows

    def _chunk(self, job: Job, batch: Batch, task: Task, left: int, last: int) -> None:
        """The first path, its segments before `last`, or as many rows of its first root as fit, into pages for all that
        sees them, if there is room in round, pages and states. Few rows wait for the next round, unless nothing else
        goes into this one."""
        assert job.tasks is not None
        n_root, n_context = int(job.tree.lengths[task.first]) - task.skip, task.path.length
        n_rows = _n_rows(job.tree, task.first, last, task.skip)
        if n_rows > left:
            n_rows, last = _cut_at(job.tree, task, min(left, n_root), self.grain), task.first + 1
        if n_rows < (min(self.min_chunk, n_root) if batch.units else 1):
            return
        end = self.pages.take_state() if self.pages.recurrent else -1
        if end is None:
            return
        forks = int(job.tree.behind[task.first]) < task.last
        path = self.pages.fork(task.path) if forks else task.path
        room = self.pages.extend(path, n_rows)
        if room is None:
            if end >= 0:
                self.pages.drop_state(end)
            if forks:
                self.pages.release(path)
            return
        job.tasks.pop(0)
        then = self._behind(job.tree, task, self.pages.fork(path, state=end))
        if forks:
            self.pages.release(task.path)
        states = self._checkpoints(job, n_context, path.length) if end >= 0 and _leads(job.tree, task) else []
        if end >= 0:
            states.append((path.length, self.pages.hold_state(end)))
        part = Task(path, task.first, last, task.skip)
        self._add(job, batch, part, n_rows, _Kept(n_context, *room, states), then)

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

    def _add(self, job: Job, batch: Batch, task: Task, n_rows: int, kept: _Kept, then: list[Task]) -> None:
        tree, places = _cut(job.tree, task, n_rows)
        job.is_split |= job.is_begun and int(tree.blocks[0]) == WHOLE
        pages = np.array(task.path.pages[: -(-kept.n_context // self.pages.page_size)], np.int32)
        unit = Unit(
            tree, pages, kept.n_context, kept.slots, _forks(job.tree, task), task.skip > 0,
            task.path.state if kept.n_context else -1,
            np.array([(at - kept.n_context - 1, slot) for at, slot in kept.states], np.int32).reshape(-1, 2),
        )  # fmt: skip
        n_keep = min(job.n_keep, task.path.length) if _leads(job.tree, task) else 0
        batch.copies.extend([kept.copy] if kept.copy else [])
        batch.add(unit, Share(job, places, task.path, kept.states, n_keep, then))


def _n_rows(tree: Tree, first: int, last: int, skip: int) -> int:
    end = int(tree.starts[last]) if last < len(tree.starts) else tree.n_tokens
    return end - int(tree.starts[first]) - skip


def _first_read(tree: Tree) -> int:
    """The place in the stream of the first row that is read: it and what follows must be computed."""
    return int((tree.starts[tree.read_segments] + tree.read_rows).min(initial=tree.n_tokens - 1))


def _fitting(tree: Tree, task: Task, limit: int) -> int:
    """The segment before which as many of the task's subtrees lie as have `limit` rows together; 0 if none fits."""
    fits, root = 0, task.first
    while root < task.last:
        root = int(tree.behind[root])
        if _n_rows(tree, task.first, root, task.skip) > limit:
            break
        fits = root
    return fits


def _above_canvas(tree: Tree, first: int) -> int:
    """Where a root leads down to a canvas, the segment behind the first path before one; 0 where it does not."""
    if int(tree.blocks[first]) == WHOLE or not (tree.blocks[first : tree.behind[first]] == WHOLE).any():
        return 0
    last = first + 1
    while last < int(tree.behind[first]) and int(tree.parents[last]) == last - 1 and int(tree.blocks[last]) != WHOLE:
        last += 1
    return last


def _leads(tree: Tree, task: Task) -> bool:
    """Whether a task's first rows belong to the tree's first path, where places in the stream are positions."""
    return int(tree.starts[task.first]) == int(tree.origins[task.first])


def _cut_at(tree: Tree, task: Task, n_rows: int, grain: int) -> int:
    """The most rows, up to n_rows, after which the first root may be cut: rows of one block go together, and `grain`
    is counted from the root's start."""
    block, n_root = int(tree.blocks[task.first]), int(tree.lengths[task.first]) - task.skip
    if n_rows == n_root:
        return n_rows
    if block == 1:
        return max(0, (task.skip + n_rows) // grain * grain - task.skip)
    start = int(tree.origins[task.first]) + task.skip
    return max(0, (start + n_rows) // block * block - start)


def _forks(tree: Tree, task: Task) -> IntArray:
    """Where the segments of the path that a task continues begin."""
    segments = [task.first] if task.skip else []
    above = int(tree.parents[task.first])
    while above >= 0:
        segments.append(above)
        above = int(tree.parents[above])
    return tree.origins[segments[::-1]] if segments else np.zeros(1, np.int32)


def _beginning(unit: Unit, share: Share) -> object:
    """Equal for units of one tenant that keep as much, whose first roots are the same rows after the same rows, with
    forks at the same places: these decide in which order a row's keys are added up."""
    if not share.n_keep or share.then or share.job.alone or unit.tree.steps:
        return object()
    root = unit.tree.tokens[: unit.tree.lengths[0]].tobytes()
    context = (unit.n_context, unit.context.tobytes(), unit.state)
    place = (unit.continues, unit.forks.tobytes(), int(unit.tree.blocks[0]))
    return (share.job.salt, share.job.n_keep, *context, *place, root)


def _behind(tree: Tree, task: Task, n_rows: int) -> list[tuple[int, int, int]]:
    """(first, last, skip) of the runs of subtrees that are left of a task when its first root and
    the first path below it have n_rows in pages."""
    groups = []
    root, last, at = task.first, task.last, n_rows
    while at > 0:
        behind = int(tree.behind[root])
        if behind < last:
            groups.append((behind, last, 0))
        if at < int(tree.lengths[root]):
            break
        at -= int(tree.lengths[root])
        root, last = root + 1, behind
    if root < last:
        groups.append((root, int(tree.behind[root]) if at else last, at))
    return groups[::-1]


def _cut(tree: Tree, task: Task, n_rows: int) -> tuple[Tree, IntArray]:
    """The part of a tree that a task's unit computes, and the places of its reads in the whole tree."""
    first, last, skip = task.first, task.last, task.skip
    if first == 0 and skip == 0 and n_rows == tree.n_tokens:
        return tree, np.arange(len(tree.read_rows), dtype=np.int32)
    row0 = int(tree.starts[first]) + skip
    rows = tree.starts[tree.read_segments] + tree.read_rows
    places = np.flatnonzero((rows >= row0) & (rows < row0 + n_rows))
    lengths = tree.lengths[first:last].copy()
    lengths[0] = min(int(lengths[0]) - skip, n_rows)
    segments = tree.read_segments[places] - first
    sizes = np.diff(tree.offsets)[places]
    part = Tree(
        tokens=tree.tokens[row0 : row0 + n_rows],
        lengths=lengths,
        parents=np.maximum(tree.parents[first:last] - first, -1),
        blocks=tree.blocks[first:last],
        read_segments=segments,
        read_rows=tree.read_rows[places] - np.where(segments == 0, skip, 0).astype(np.int32),
        normalize=tree.normalize[places],
        columns=tree.columns[np.repeat(tree.offsets[places], sizes) + _ramp(sizes)],
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        steps=tuple((segment - first, step) for segment, step in tree.steps if first <= segment < last),
    )
    return part, places.astype(np.int32)


_NONE = np.zeros(0, np.int32)


def _ramp(sizes: IntArray) -> IntArray:
    """0 1 .. sizes[0]-1, 0 1 .. sizes[1]-1, and so on."""
    return (np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)).astype(np.int32)
