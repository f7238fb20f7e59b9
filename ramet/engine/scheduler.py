"""Which jobs, how many rows of each: from the queue to the units of a round. Knows no tensors."""

from __future__ import annotations

import sys
from itertools import chain

from ramet.cache.pages import Pages
from ramet.engine.admission import Admission
from ramet.engine.batch import Batch
from ramet.engine.decoding import Decoding, DrawnRows
from ramet.engine.job import Job
from ramet.engine.jobs import Jobs
from ramet.engine.packing import Packer
from ramet.engine.prompts import Kept, Prompts
from ramet.tree import Reads


class Scheduler:
    """First come, first served, under `max_round_tokens`. A job that is cut leaves half of a round to others, and so do
    the prompts of replies, and the reads under way together, which take turns; a job that then finds no room has the
    next round first. Those that wait for pages or for a trunk are overtaken, but never by a job that needs the pages
    too; a further read begins where those under way, and their pages, leave room for it. Running replies are in every
    round, in half of it at most where others wait.
    """

    def __init__(
        self, pages: Pages, max_round_tokens: int, grain: int = 1, max_running: int | None = None,
        decoding: Decoding | None = None, n_other_states: int = 0, kept: Kept = lambda n: (n, ()),
    ) -> None:  # fmt: skip
        """`grain`: a root is cut at multiples of it, counted from the root's start; no more than a round.
        `max_running`: jobs that are under way at once (None: as many as fit). n_other_states: slots of recurrent states
        that replies leave to others. kept: how many of the first rows of a prompt are kept, and their checkpoints."""
        self.pages, self.decoding = pages, decoding
        self.max_running, self.max_round_tokens = max_running or sys.maxsize, max_round_tokens
        self.jobs = Jobs()
        self._packer = Packer(pages, max_round_tokens, grain)
        self._admission = Admission(self.jobs, self._packer, decoding, n_other_states)
        self._prompts: Prompts | None = None
        if decoding is not None:
            self._prompts = Prompts(self.jobs, self._packer, self._admission, decoding, kept)
        self._half = max(max_round_tokens // 2, grain)
        self._passed: Job | None = None  # found no room in the last round

    def __len__(self) -> int:
        return len(self.jobs) + (len(self.decoding) if self.decoding else 0)

    def n_pages_for(self, max_position: int) -> int:
        """Pages that a tree may need at once when it is cut."""
        return self._admission.n_pages_for(max_position)

    def add(self, job: Job) -> None:
        """Behind those that wait, or behind the other reads that are between two trees."""
        if job.reply is None:
            self._packer.expect(job)
        else:
            assert self._prompts is not None
            self._prompts.expect(job)
        self.jobs.add(job)

    def next(self) -> Batch:
        """The next round; an empty one when there is nothing to do but to wait for a round under way."""
        has_replies = self.decoding is not None and (len(self.decoding) > 0 or self.jobs.n_replies > 0)
        if self.jobs.in_flight and has_replies:
            return Batch()  # what replies do next depends on it, and what else there is joins them
        batch = self._made(has_replies)
        if not batch and has_replies:
            batch = self._made(has_replies)  # with the pages that replies have given up
        if batch:
            self.jobs.in_flight.append(batch)
        return batch

    def commit(self, batch: Batch, results: list[Reads], drawn: DrawnRows | None = None) -> list[Job]:
        """Take the results of a round in; returns the jobs whose trees are complete, and whose replies have ended."""
        self.jobs.in_flight.remove(batch)
        self.emit()
        for part, reads in batch.split(results):
            job = part.job
            job.is_begun = True
            job.take(part.places, reads)
            if part.n_keep:
                self.pages.keep(job.keys[: part.n_keep // self.pages.page_size], part.path, part.states)
            self._packer.let_go(part)
            assert job.tasks is not None
            job.tasks[:0] = part.then
        jobs = batch.jobs
        for job in jobs:
            job.n_rounds += 1
            job.alone = job.alone and job.reply is None
            if job.is_ready:
                assert self._prompts is not None
                self._prompts.begin(job)
        ended = list[Job]()
        if batch.step is not None:
            assert self.decoding is not None
            assert drawn is not None
            ended = self.decoding.commit(batch.step, drawn)
            self._admission.is_crowded &= not ended
        done = [job for job in jobs if job.reply is None and not job.tasks]
        for job in done:  # not before: where the step fails, they are still there to get the fault
            self.jobs.running.remove(job)
        return [*done, *ended]

    def emit(self) -> None:
        """Give what the last round made known to the replies: it may wait until the next round is on its way."""
        if self.decoding is not None:
            self.decoding.emit()

    def drop(self, jobs: list[Job], batch: Batch | None = None) -> None:
        """End jobs, with what they hold in `batch` if a round of theirs did not come to its commit."""
        self.emit()
        if batch is not None:
            self.jobs.in_flight.remove(batch)
        for part in (part for parts in (batch.parts if batch else []) for part in parts):
            self._packer.let_go(part)
            for task in part.then:
                self.pages.release(task.path)
        for job in jobs:
            if job.reply is not None and job.reply.place >= 0:
                assert self.decoding is not None
                self.decoding.drop(job)
                self._admission.is_crowded = False
                continue
            self._packer.release(job)
            self.jobs.remove(job)

    def rerun(self, batch: Batch) -> None:
        """After a round that failed: all of its jobs run again, each alone."""
        jobs = batch.jobs
        self.drop(jobs, batch)
        for job in jobs:
            job.restart(alone=True)
            if job.reply is None:
                self.add(job)
                continue
            assert self._prompts is not None
            self._prompts.wait(job)
        for job in batch.step.jobs if batch.step else []:
            job.alone = True

    def cancelled(self) -> list[Job]:
        """Remove and return the jobs whose callers have gone, those of rounds under way excepted."""
        flying = self.jobs.flying
        gone = [job for job in self._all() if job.future.cancelled() and job not in flying]
        self.drop(gone)
        return gone

    def abandon(self) -> list[Job]:
        """Remove and return all jobs."""
        for batch in list(self.jobs.in_flight):
            self.drop([], batch)
        jobs = self._all()
        self.drop(jobs)
        return jobs

    def stats(self) -> dict[str, float]:
        """Replies that run and that wait, and counters of them."""
        if self.decoding is None:
            return {}
        n_live, n_waiting = float(len(self.decoding)), float(self.jobs.n_replies)
        return self.decoding.stats() | {"replies_live": n_live, "replies_waiting": n_waiting}

    def _all(self) -> list[Job]:
        return [*self.jobs, *(self.decoding or ())]

    def _made(self, has_replies: bool) -> Batch:
        batch, flying = Batch(room=self.max_round_tokens), self.jobs.flying
        landed = [job for job in self.jobs.running if job not in flying]
        if not (landed or self.jobs.between or self.jobs.waiting or has_replies):
            return batch
        self._admission.look()
        tree = next((job for job in chain(landed, self.jobs.between, self.jobs.waiting) if job.alone), None)
        if tree is not None and self._run_alone(tree, batch):
            return batch
        only = self._alone_reply() if has_replies else None
        if only is not None and self._run_alone(only, batch):
            return batch
        if only is None:
            self._start_passed(batch)
        if has_replies:
            self._encode(batch, only)
        if only is not None and batch:  # others gave up their pages for it
            self._step(batch, only)
            return batch
        share = self._half if self.jobs.waiting or self.jobs.between else self.max_round_tokens
        for job in landed:
            self._packer.advance(job, batch, share)
        self._go_on(batch)
        self._start_waiting(batch)
        self._step(batch)
        return batch

    def _alone_reply(self) -> Job | None:
        """A reply that is to share no round, and need not wait for what others hold."""
        assert self.decoding is not None
        begun = next((job for job in chain(self.decoding, self.jobs.prompts) if job.alone), None)
        waiting = (job for job in self.jobs.waiting_replies if job.alone)
        return begun or next(filter(self._admission.may_begin, waiting), None)

    def _encode(self, batch: Batch, only: Job | None) -> None:
        """Bring in rows of prompts, of one alone where it waits for what others hold, and leave rows to the running
        replies. Where there are trees, these get half of the rest."""
        assert self.decoding is not None
        assert self._prompts is not None
        has_trees = self.jobs.has_trees
        if not (has_trees or self.jobs.n_replies):  # running replies have all of the round
            return
        reserved = min(self.decoding.n_rows, self._half)
        room = batch.left - reserved
        if only is None and has_trees:
            room = max(room // 2, min(room, max(self._packer.grain, self.decoding.block)))
        batch.room -= reserved
        self._prompts.encode(batch, room, only)

    def _run_alone(self, job: Job, batch: Batch) -> bool:
        """Make a round of one job. False where it waits for pages that others hold."""
        if job.reply is not None:
            assert self._prompts is not None
            if job.reply.place < 0:
                self._prompts.bring_in(job, batch, batch.left)
            self._step(batch, job)
            return bool(batch)
        if job in self.jobs.running:
            self._packer.advance(job, batch, self.max_round_tokens)
        elif self._packer.is_cut(job) and self._admission.is_blocked(job):
            return False
        else:
            self._start(job, batch)
        batch.seal(None)
        return bool(batch)

    def _step(self, batch: Batch, only: Job | None = None) -> None:
        """Bring in the running replies, or one of them: the batch is complete."""
        step, given_up = None, list[Job]()
        if self.decoding is not None and (only is None or only in self.decoding):
            step, given_up = self.decoding.step(self.max_round_tokens - batch.n_tokens, batch.n_tokens, only)
        for job in given_up:
            assert self._prompts is not None
            self._prompts.wait(job)
            self._admission.is_crowded = True
        batch.seal(step)

    def _start_passed(self, batch: Batch) -> None:
        """Bring in the job that found no room in the last round: running ones take half of each."""
        job, self._passed = self._passed, None
        if job is not None and (job in self.jobs.waiting or job in self.jobs.between):
            self._start(job, batch)

    def _go_on(self, batch: Batch) -> None:
        """Bring in the reads under way, in turn, to half of a round where others wait that take one round."""
        left = self.max_round_tokens if all(job.is_long for job in self.jobs.waiting) else self._half
        for job in list(self.jobs.between):
            n_due = self._packer.n_due(job)
            held = self._packer.is_cut(job) and self._admission.is_blocked(job)
            if job.alone or held or self._admission.awaits(job, batch) or (n_due > left and batch.has_like(job)):
                continue
            if self._start(job, batch):
                left -= n_due
            elif n_due > self._half:  # as of one whose pages were given up
                self._passed = job

    def _start_waiting(self, batch: Batch) -> None:
        """Bring in the trees that wait, in their order."""
        blocked, crowded = any(map(self._packer.is_cut, self.jobs.between)), False
        n_running = len(self.jobs.running) + len(self.jobs.between)
        for job in list(self.jobs.waiting):
            if n_running >= self.max_running:
                break
            is_cut = self._packer.is_cut(job)
            blocked = blocked or (is_cut and self._admission.is_blocked(job))
            crowded = crowded or (job.is_long and self._admission.is_crowded_for(job))
            held = (blocked and is_cut) or (crowded and job.is_long)
            if job.alone or held or self._admission.awaits(job, batch):
                continue
            if self._start(job, batch):
                n_running += 1
                continue
            if not job.is_long:
                self._passed = None if is_cut else job
                break
            crowded = True

    def _start(self, job: Job, batch: Batch) -> bool:
        """Bring a tree that waits into this round. False when the round is full."""
        left = batch.left
        if left < (self._packer.min_piece if self._packer.is_cut(job) else self._packer.n_due(job)):
            return False
        self._packer.resume(job)
        self.jobs.start(job)
        self._packer.advance(job, batch, left)
        return True
