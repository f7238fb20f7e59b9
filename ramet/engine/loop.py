"""The loop of the engine's thread: rounds, each of which admits, packs, runs, reads and commits."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import torch

from ramet.engine.batch import Batch
from ramet.engine.cache import Cache
from ramet.engine.checks import TreeCheck
from ramet.engine.faults import device_lost, keep_for_ever, not_finite, round_fault, settle
from ramet.engine.finite import NotFinite
from ramet.engine.inbox import Inbox
from ramet.engine.job import Job
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.outbox import PieceOutbox
from ramet.engine.runner import InFlight, RoundResult, Runner
from ramet.engine.scheduler import Scheduler
from ramet.engine.sizing import Sizing
from ramet.errors import Cancelled, EngineFault, RametError
from ramet.tree import Reads

_LOGGER = logging.getLogger(__name__)
COUNTS = (
    "requests", "rounds", "tokens", "failed_rounds", "canvas_reads", "two_step_reads", "read_fallbacks",
)  # fmt: skip
MAX_FAILURES = 3  # rounds of one job in a row that fail before the engine calls itself broken


class Loop:
    """One thread runs rounds until the inbox is closed. `is_lost`: whether the device has failed, with all that it
    held."""

    def __init__(
        self, name: str, inbox: Inbox, scheduler: Scheduler, runner: Runner, cache: Cache, check: TreeCheck,
        outbox: PieceOutbox, sizing: Sizing | None,
    ) -> None:  # fmt: skip
        self.name, self.inbox, self.scheduler, self.runner, self.cache = name, inbox, scheduler, runner, cache
        self.sizing, self.is_lost = sizing, False
        self.counts = Counter(dict.fromkeys(COUNTS, 0))  # no key comes later
        self.round_sizes: Counter[int] = Counter()  # requests in a round -> rounds
        self._check, self._outbox = check, outbox
        self._in_flight: deque[InFlight] = deque()
        # Replies that ended in a round, the round, its seconds, and those between it and the one before.
        self._due: deque[tuple[list[Job], Batch, float, float]] = deque()
        self._since = 0.0  # when a round ended or failed, or work came in
        self._n_failures = 0
        self._thread = threading.Thread(target=self._run, name="ramet-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def round(self) -> None:
        """The plain round: what is packed is run, read and committed before the next is packed."""
        self.admit()
        batch = self.pack()
        flight = self.run(batch)
        if flight and (result := self.read(flight)):
            self.commit(flight.batch, result)
        self.emit()

    def overlapped_round(self) -> None:
        """The round of a device that runs by itself: the next is packed and sent while one runs, and what the last one
        made known is emitted meanwhile."""
        self.admit()
        batch = self.pack()
        if flight := self.run(batch):
            self._in_flight.append(flight)
        self.emit()
        if self._in_flight and (len(self._in_flight) == self.runner.depth or not batch):
            flight = self._in_flight.popleft()
            if result := self.read(flight):
                self.commit(flight.batch, result)

    def admit(self) -> None:
        """Take what has arrived; where there is nothing else to do, wait for it. Let go of those who have left."""
        idle = not self._in_flight and not len(self.scheduler) and not self.inbox.is_closed
        if idle:
            self.emit()
        for found in self.inbox.arrived(wait=idle):
            self._take_in(found)
        if idle:
            self._since = time.perf_counter()
        if self.inbox.has_gone and not self.inbox.is_closed:
            self.inbox.has_gone = bool(self.scheduler.jobs.in_flight)  # jobs of rounds under way go when these end
            for job in self.scheduler.cancelled():
                job.future.set_running_or_notify_cancel()

    def pack(self) -> Batch:
        """The next round, of all that was admitted; an empty one where there is nothing to do."""
        if self.inbox.is_closed:
            return Batch()
        batch = self.scheduler.next()
        if not batch and not self._in_flight and len(self.scheduler):
            raise EngineFault("the scheduler found no work for the requests that wait")
        return batch

    def run(self, batch: Batch) -> InFlight | None:
        """Send a round to the device. None where there is none, or it fails."""
        if not batch:
            return None
        try:
            return self.runner.launch(batch)
        except Exception as error:  # whatever a pass raises must neither end the thread nor fail a neighbour
            self._recover(batch, error)
        return None

    def read(self, flight: InFlight) -> RoundResult | None:
        """Wait for the results of a round. None where it failed."""
        try:
            return flight.wait()
        except Exception as error:  # a device reports late
            self._recover(flight.batch, error)
        return None

    def commit(self, batch: Batch, result: RoundResult) -> None:
        """Give results to their jobs and rows to the index; answer callers, or go on to the next tree of a read."""
        now = time.perf_counter()
        took, self._since = now - self._since, now
        for job in batch.jobs:
            job.started_at = job.started_at or now - result.seconds
            job.pass_s += result.seconds
        done = self.scheduler.commit(batch, result.reads, result.drawn)
        self.counts.update(rounds=1, tokens=batch.n_tokens)
        self.round_sizes[len(batch.all_jobs)] += 1
        self._n_failures = 0
        for job in done:
            if job.reply is None:
                self._complete(job)
        self._due.append(([job for job in done if job.reply], batch, result.seconds, took - result.seconds))

    def emit(self) -> None:
        """Give what the last rounds made known to all that wait for it."""
        self.scheduler.emit()
        self._outbox.send()
        while self._due:
            ended, batch, seconds, between = self._due.popleft()
            for job in ended:
                assert job.reply is not None
                self._finish(job, job.reply.fault or job.reply.n_cached or 0)
            if self.sizing is not None:
                self.sizing.observe(batch, seconds, between)

    def measure(self) -> None:
        """Measure how long rounds take, if that is still due. Called by the loop's own thread."""
        if self.sizing is not None and self.sizing.is_due and not self.inbox.is_closed:
            self.sizing.measure(self.runner, self.cache)
            self._since = time.perf_counter()

    def _run(self) -> None:
        try:
            while not self.inbox.is_closed or self._in_flight:
                self.round() if self.runner.depth == 1 else self.overlapped_round()
                if self.is_lost:
                    keep_for_ever(*self._in_flight)
                if self.inbox.fault is not None:
                    self._in_flight.clear()
            self._fail_all(Cancelled("the engine was closed"))
        except Exception as error:  # a fault outside a pass: nobody may be left hanging
            self._break(EngineFault(f"the engine's loop failed: {type(error).__name__}: {error}"))

    def _take_in(self, found: Job | Callable[[], None]) -> None:
        """A job that cannot be taken in fails alone: nobody else knows of it yet."""
        if not isinstance(found, Job):
            found()
            return
        try:
            if found.reply is not None:
                self.measure()
            self.scheduler.add(found)
        except Exception as error:
            settle(found, EngineFault(f"a request cannot be taken in: {type(error).__name__}: {error}"))

    def _complete(self, job: Job) -> None:
        """A tree is complete: it was all of its job, or the next one of the read follows."""
        if job.has_canvas and not job.is_under_way:  # a canvas that is read in one step of its own
            fell_back = job.is_split and not job.two_steps
            self.counts.update(canvas_reads=1, two_step_reads=job.is_split, read_fallbacks=fell_back)
        if job.read is None:
            self._finish(job, job.reads)
        else:
            self._proceed(job, job.read)

    def _proceed(self, job: Job, read: MultiStepRead) -> None:
        """Go on with the next tree of a read; what is wrong with it goes to its caller alone."""
        if job.n_resumed is None:
            job.n_resumed = job.n_cached
        try:
            if read.take(job.reads):
                self._finish(job, job.n_resumed)
                return
            tree = read.tree()
            self._check(tree)
        except RametError as error:
            settle(job, error)
        except Exception as error:
            settle(job, round_fault(job.n_tokens, error))
        else:
            n_root = int(tree.lengths[0])
            job.proceed(tree, *self.cache.kept(n_root, n_root))
            self.scheduler.add(job)

    def _finish(self, job: Job, outcome: Reads | int | EngineFault) -> None:
        self.counts.update(requests=1)
        settle(job, outcome)

    def _recover(self, batch: Batch, error: Exception) -> None:
        """After a failed round its jobs run again, each alone. One that fails alone gets the fault, behind all that was
        known of it before."""
        _LOGGER.warning("a round of %d requests failed: %r", len(batch.all_jobs), error)
        self.emit()
        self._since = time.perf_counter()
        self.counts["failed_rounds"] += 1
        if isinstance(error, torch.AcceleratorError):  # the device's context is lost, with all that it held
            self._lose_device(batch, error)
            return
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
        if len(batch.all_jobs) > 1:
            self.scheduler.rerun(batch)
        else:
            self._fail(batch, error)

    def _fail(self, batch: Batch, error: Exception) -> None:
        """The round of one job failed. Smaller ones may well fit the memory, and others have other numbers."""
        (job,) = batch.all_jobs
        self.scheduler.drop([job], batch)
        is_broken = isinstance(error, NotFinite) and not self.runner.is_sound()
        fault = not_finite(self.name) if is_broken else round_fault(batch.n_tokens, error)
        self._n_failures += not isinstance(error, torch.OutOfMemoryError | NotFinite)
        is_broken |= self._n_failures >= MAX_FAILURES
        if is_broken:
            self.inbox.refuse(fault)  # before anybody gets it
        settle(job, fault)
        if is_broken:
            self._break(fault)

    def _lose_device(self, batch: Batch, error: Exception) -> None:
        self.is_lost = True
        jobs = batch.jobs
        keep_for_ever(self.runner, self.cache, error, *batch.all_jobs)
        self.scheduler.drop(jobs, batch)
        fault = device_lost(error)
        self.inbox.refuse(fault)  # before anybody gets it
        for job in jobs:
            settle(job, fault)
        self._break(fault)  # running replies are among those that wait

    def _break(self, fault: EngineFault) -> None:
        """The engine has failed for good: nobody is taken in any more, and all who wait get the fault."""
        self.inbox.refuse(fault)
        self._fail_all(fault)

    def _fail_all(self, error: Exception) -> None:
        self.emit()
        for found in self.inbox.arrived(wait=False):
            self._take_in(found)
        jobs = self.scheduler.abandon()
        if self.is_lost:
            keep_for_ever(*jobs)  # what the steps of their reads left
        for job in jobs:
            settle(job, error)
