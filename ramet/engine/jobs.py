"""Jobs: all work that an engine has, by how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramet.engine.batch import Batch
from ramet.engine.job import Job


@dataclass(slots=True, eq=False)
class Jobs:
    """`waiting` are the trees that have not begun, in the order in which they came; `between` the reads under way whose
    next tree waits; `running` the trees with tasks left. `waiting_replies` are the replies that have not begun, in
    their order; `prompts` those whose prompts are on their way into pages; replies that are being written have left.
    `in_flight` are the rounds that are neither committed nor dropped."""

    waiting: deque[Job] = field(default_factory=deque)
    between: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    waiting_replies: deque[Job] = field(default_factory=deque)
    prompts: list[Job] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.between) + len(self.running) + self.n_replies

    def __iter__(self) -> Iterator[Job]:
        yield from (*self.running, *self.prompts, *self.between, *self.waiting, *self.waiting_replies)

    def add(self, job: Job) -> None:
        """Behind those that wait, or behind the other reads that are between two trees."""
        self._queue_of(job).append(job)

    def start(self, job: Job) -> None:
        """It waits no longer."""
        self._queue_of(job).remove(job)
        (self.running if job.reply is None else self.prompts).append(job)

    def remove(self, job: Job) -> None:
        begun = self.running if job.reply is None else self.prompts
        (begun if job in begun else self._queue_of(job)).remove(job)

    @property
    def flying(self) -> set[Job]:
        """Those of rounds under way: what follows in them waits for the commit."""
        return {job for batch in self.in_flight for job in batch.all_jobs} if self.in_flight else set()

    @property
    def n_replies(self) -> int:
        """Replies that are not being written yet."""
        return len(self.waiting_replies) + len(self.prompts)

    @property
    def has_trees(self) -> bool:
        """Whether there is other work than replies."""
        return bool(self.running or self.between or self.waiting)

    def _queue_of(self, job: Job) -> deque[Job]:
        if job.reply is not None:
            return self.waiting_replies
        return self.between if job.is_under_way else self.waiting
