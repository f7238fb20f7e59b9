"""Prompts: replies on their way from the queue into pages. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable

from ramet.cache.pages import Path
from ramet.engine.admission import Admission
from ramet.engine.batch import Batch
from ramet.engine.decoding import Decoding
from ramet.engine.job import Job, prompt_of
from ramet.engine.jobs import Jobs
from ramet.engine.packing import Packer

Kept = Callable[[int], tuple[int, tuple[int, ...]]]


class Prompts:
    """The rows before a reply's beginning go into pages as the trunk of a tree does; then the reply runs.

    kept: how many of the first rows of a prompt are kept, and the positions of their checkpoints.
    """

    def __init__(self, jobs: Jobs, packer: Packer, admission: Admission, decoding: Decoding, kept: Kept) -> None:
        self._jobs, self._packer, self._admission, self._decoding = jobs, packer, admission, decoding
        self._kept = kept

    def expect(self, job: Job) -> None:
        """Note what of a reply is to go into pages."""
        assert job.reply is not None
        job.proceed(prompt_of(job.reply, self._decoding.block), *self._kept(job.reply.beginning.start))
        self._packer.expect(job)

    def wait(self, job: Job) -> None:
        """Let a reply wait again, before all others, since it came before them."""
        alone = job.alone
        self.expect(job)
        job.alone = alone
        self._jobs.waiting_replies.appendleft(job)

    def give_up(self, job: Job) -> None:
        """Let a reply whose prompt is on its way wait again, without its pages."""
        self._packer.release(job)
        self._jobs.prompts.remove(job)
        self.wait(job)
        self._admission.is_crowded = True
        self._decoding.counts.update(preemptions=1)

    def encode(self, batch: Batch, room: int, only: Job | None) -> None:
        """Bring rows of prompts into a round, `room` at most, of all replies or of one. Where prompts hold all pages,
        and none can go on, the newest gives up its own."""
        before = batch.n_tokens
        self._encode(batch, room, only)
        while self._admission.stuck and self._jobs.prompts and not len(self._decoding) and batch.n_tokens == before:
            self.give_up(self._jobs.prompts[-1])
            if self._jobs.prompts:
                self._encode(batch, room, only)

    def bring_in(self, job: Job, batch: Batch, room: int) -> None:
        """Bring in what fits of a reply's prompt. One whose prompt is in pages runs from now on."""
        assert job.reply is not None
        if job.tasks is None:
            self._jobs.start(job)
            self._packer.resume(job)
            if job.reply.n_cached is None:
                job.reply.n_cached = job.n_cached
        if not (self.begin(job) if job.is_ready else self._packer.advance(job, batch, room)):
            self._admission.stuck.add(job)

    def begin(self, job: Job) -> bool:
        """A reply whose prompt is in pages runs from now on. False where there is no slot for its next state."""
        spare = self._packer.take_spare()
        if spare is None:
            return False
        self._jobs.prompts.remove(job)
        self._decoding.add(job, job.tasks.pop().path if job.tasks else Path(), spare)
        return True

    def _encode(self, batch: Batch, room: int, only: Job | None) -> None:
        """Those that have begun go on; of those that wait begin as many as have room, in their order."""
        end = batch.n_tokens + room
        self._admission.stuck.clear()
        for job in list(self._jobs.prompts):
            if only in (None, job):
                self.bring_in(job, batch, end - batch.n_tokens)
        for job in [job for job in self._jobs.waiting_replies if only in (None, job)]:
            if end - batch.n_tokens < 1:
                return
            if only is None and self._admission.awaits(job, batch):
                continue
            if not self._admission.may_begin(job):
                return
            self.bring_in(job, batch, end - batch.n_tokens)
