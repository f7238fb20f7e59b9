"""Replies and jobs that come, fail and leave at random, without a model: all end, and every place comes back."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from ramet.cache.pages import Pages
from ramet.denoise.draws import Draws
from ramet.denoise.elastic import Auto, Fixed
from ramet.denoise.next_tokens import NextTokens
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning, RunningReplies
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.batch import Batch
from ramet.engine.chunk_choice import ChunkChoice
from ramet.engine.decoding import Decoding, DrawnRows
from ramet.engine.host import host_for
from ramet.engine.job import STATES_A_JOB, Job
from ramet.engine.reply import Reply
from ramet.engine.scheduler import Scheduler
from ramet.tree import Read, Reads, Segment, Tree

PAGE, BLOCK, MASK = 16, 8, 99
HOST = host_for(torch.device("cpu"))
Rng = np.random.Generator


class World:
    """A scheduler with few pages, rounds that draw at random, and what was asked of it."""

    def __init__(self, rng: Rng) -> None:
        self.rng, self.masks = rng, bool(rng.integers(2))
        recurrent = not self.masks and bool(rng.integers(2))
        self.pages = Pages(int(rng.integers(7, 24)), PAGE, 2 * STATES_A_JOB + int(rng.integers(6)) if recurrent else 0)
        self.rows = int(rng.choice([32, 64, 128]))
        running: RunningReplies = NextTokens()
        if self.masks:
            running = HOST.blocks(BLOCK, MASK, "block" if rng.random() < 0.3 else "chunk", ahead=bool(rng.integers(2)))
        self.block = BLOCK if self.masks else 1
        sizes = Fixed(int(rng.integers(2, 9))) if rng.integers(2) else Auto(lambda rows, _: 1 + 0.01 * rows, BLOCK)
        most = self.rows // 2 // running.least
        self.decoding = Decoding(
            running, ChunkChoice(sizes, self.block), self.pages, HOST, block=self.block,
            mask=MASK if self.masks else -1, max_running=int(rng.integers(1, most + 1)),
        )  # fmt: skip
        self.scheduler = Scheduler(
            self.pages, self.rows, PAGE if recurrent else 1, None, self.decoding,
            n_other_states=2 * STATES_A_JOB if recurrent else 0,
            kept=lambda n: (n, tuple(range(PAGE, n + 1, 2 * PAGE)) if recurrent else ()),
        )  # fmt: skip
        self.asked: list[Job] = []

    @property
    def room(self) -> int:
        return (self.pages.n_pages - 1) * PAGE

    def prompt(self, most: int) -> Any:
        """Some begin alike."""
        n = int(self.rng.integers(1, most + 1))
        same = min(n, int(self.rng.choice([0, 40])))
        return np.concatenate([np.arange(same) % 90, self.rng.integers(0, 90, n - same)]).astype(np.int32)

    def ask(self) -> None:
        each = self.job() if self.rng.random() < 0.4 else self.reply()
        self.asked.append(each)
        self.scheduler.add(each)

    def job(self) -> Job:
        ids = self.prompt(self.room - 4 * PAGE)
        marks = tuple(range(PAGE, len(ids), PAGE)) if self.pages.recurrent else ()
        ends = [Segment(np.arange(5), 0, reads=[Read([1])], block=self.block) for _ in range(3)]
        return Job(Tree.of([Segment(ids, block=self.block), *ends]), Future(), n_keep=len(ids), marks=marks)

    def reply(self) -> Job:
        ids = self.prompt(self.room - 20)
        n, end = len(ids), len(ids) + int(self.rng.integers(1, min(60, self.room - len(ids)) + 1))
        start = n // BLOCK * BLOCK if self.masks else n - 1
        beginning = Beginning(
            start, ids[start:], np.ones(n - start, np.bool_), n, n, end, frozenset({3}) if n % 2 else frozenset(),
            UnmaskPolicy(block=self.block, threshold=0.5), Draws(0.0, 0, 1.0, Noise(n)),
        )  # fmt: skip
        return Job.of(Reply(ids, beginning, chunk_size=4 if self.masks and n % 5 == 0 else None))

    def round(self, failing: float) -> None:
        """One round, or none where there is nothing to do."""
        self.end(self.scheduler.cancelled())
        batch = self.scheduler.next()
        if not batch:
            assert not len(self.scheduler), "what waits found no work"
            return
        assert batch.n_tokens <= self.rows
        if self.rng.random() < 0.5:  # when the round is on its way, or as late as can be
            self.scheduler.emit()
        if self.rng.random() < failing:
            self.fail(batch)
            return
        reads = [_reads(unit.tree) for unit in batch.units]
        self.end(self.scheduler.commit(batch, reads, self.drawn(batch)))

    def fail(self, batch: Batch) -> None:
        """As the engine does: those that fail alone end, the others run again."""
        if len(batch.all_jobs) > 1:
            self.scheduler.rerun(batch)
            return
        self.scheduler.drop(batch.all_jobs, batch)
        self.end(batch.all_jobs)

    def drawn(self, batch: Batch) -> DrawnRows | None:
        if batch.step is None:
            return None
        n = len(batch.step.chunks.reads)
        confidence = self.rng.random(n, np.float32)
        return DrawnRows(self.rng.integers(0, 90, n).astype(np.int32), confidence, np.zeros(n, np.float32))

    def end(self, those: list[Any]) -> None:
        for each in those:
            if not each.future.done():
                each.future.set_result(None)


def _reads(tree: Tree) -> Reads:
    return Reads(tree.columns.astype(np.float32), np.zeros(len(tree.read_rows), np.float32), tree.offsets)


def assert_whole(reply: Reply) -> None:
    """All was told to it, and nothing twice."""
    asked, stops = reply.beginning, reply.finish == "stop"
    assert asked.stop_ids.isdisjoint(reply.tokens[:-1])
    assert reply.tokens[-1] in asked.stop_ids if stops else len(reply.tokens) == asked.end - asked.n_prompt
    assert len(reply.logprobs) == len(reply.tokens)


@pytest.mark.parametrize("seed", range(30))
def test_all_that_was_asked_ends_and_nothing_stays_held(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world, failing = World(rng), float(rng.choice([0, 0.1, 0.3]))
    for _ in range(int(rng.integers(5, 40))):
        world.ask()
        if rng.random() < 0.15:
            world.asked[int(rng.integers(len(world.asked)))].future.cancel()
        for _ in range(int(rng.integers(4))):
            world.round(failing)
    for _ in range(20_000):
        if not len(world.scheduler):
            break
        world.round(failing)
    assert all(each.future.done() for each in world.asked)
    for job in (each for each in world.asked if each.reply is not None):
        assert job.reply is not None
        if job.reply.finish is not None:
            assert_whole(job.reply)
        else:
            assert failing or job.future.cancelled()
    world.pages.index.clear()
    assert (world.pages.n_free, world.pages.n_free_states) == (world.pages.n_pages, world.pages.n_states)
    assert not world.scheduler.jobs.in_flight
