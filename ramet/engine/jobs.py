"""Jobs: all work that an engine has, by how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ramet.engine.batch import Batch
from ramet.engine.job import Job


@dataclass(slots=True, eq=False)
class Jobs:
    """`waiting` are those that have not begun, in the order in which they came; `between` the reads under way whose
    next tree waits; `running` those with tasks left. Replies that are being written have left. `in_flight` are the
    rounds that are neither committed nor dropped."""

    waiting: deque[Job] = field(default_factory=deque)
    between: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.between) + len(self.running)

    def __iter__(self) -> Iterator[Job]:
        yield from (*self.running, *self.between, *self.waiting)

    def add(self, job: Job) -> None:
        """Behind those that wait, or behind the other reads that are between two trees."""
        (self.between if job.is_under_way else self.waiting).append(job)

    def start(self, job: Job) -> None:
        """It waits no longer."""
        (self.between if job.is_under_way else self.waiting).remove(job)
        self.running.append(job)

    def remove(self, job: Job) -> None:
        next(jobs for jobs in (self.running, self.between, self.waiting) if job in jobs).remove(job)

    @property
    def flying(self) -> set[Job]:
        """Those of rounds under way: what follows in them waits for the commit."""
        return {job for batch in self.in_flight for job in batch.all_jobs} if self.in_flight else set()

    @property
    def prompts(self) -> list[Job]:
        """Replies whose prompts are on their way into pages."""
        return [job for job in self.running if job.reply is not None]

    @property
    def has_replies(self) -> bool:
        """Whether there are replies that are not being written yet."""
        return any(job.reply is not None for job in self)

    @property
    def has_trees(self) -> bool:
        """Whether there is other work than replies."""
        return any(job.reply is None for job in self)


def trees(jobs: Iterable[Job]) -> list[Job]:
    """The jobs that write no reply."""
    return [job for job in jobs if job.reply is None]
