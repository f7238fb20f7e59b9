"""Decisions and replies in one queue: a trunk that both have is computed once, whoever comes first."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from ramet.cache.pages import Pages
from ramet.denoise.draws import Draws
from ramet.denoise.elastic import Fixed
from ramet.denoise.next_tokens import NextTokens
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.batch import Batch
from ramet.engine.chunk_choice import ChunkChoice
from ramet.engine.decoding import Decoding, DrawnRows
from ramet.engine.host import Host
from ramet.engine.job import Job
from ramet.engine.reply import Reply
from ramet.engine.scheduler import Scheduler
from ramet.tree import Read, Reads, Segment, Tree

SHARED = np.arange(256, dtype=np.int32)


def decision(*own: int, salt: str = "") -> Job:
    tree = Tree.of([Segment(SHARED), Segment(np.array(own), 0, reads=[Read([1])])])
    return Job(tree, Future(), n_keep=len(SHARED), salt=salt)


def reply(*own: int, n_tokens: int = 1, salt: str = "") -> Job:
    ids = np.concatenate([SHARED, np.array(own, np.int32)])
    n = len(ids)
    beginning = Beginning(
        n - 1, ids[n - 1 :], np.ones(1, np.bool_), n, n, n + n_tokens, frozenset(), UnmaskPolicy(block=1),
        Draws(0.0, 0, 1.0, Noise(n)),
    )  # fmt: skip
    return Job.of(Reply(ids, beginning, salt=salt))


def scheduler(max_round_tokens: int = 2048, n_pages: int = 100) -> Scheduler:
    pages = Pages(n_pages, 16)
    decoding = Decoding(NextTokens(), ChunkChoice(Fixed(1), 1), pages, Host(), block=1, mask=-1)
    return Scheduler(pages, max_round_tokens, decoding=decoding)


def rounds(queue: Scheduler, *jobs: Job) -> list[Batch]:
    """All of them, until nothing is left."""
    for job in jobs:
        queue.add(job)
    found = []
    while len(queue):
        found.append(batch := queue.next())
        assert batch
        reads = [Reads(t.columns.astype(np.float32), np.zeros(len(t.read_rows), np.float32), t.offsets)
                 for t in (unit.tree for unit in batch.units)]  # fmt: skip
        n = 0 if batch.step is None else len(batch.step.chunks.reads)
        drawn = DrawnRows(np.zeros(n, np.int32), np.ones(n, np.float32), np.zeros(n, np.float32))
        queue.commit(batch, reads, drawn)
    return found


@pytest.mark.parametrize(
    ("jobs", "most"),
    [
        ([decision(7, 8), decision(9, 9)], 256 + 2 * 2),
        ([reply(7, 8), reply(9, 9)], 256 + 2 * 2),
        ([decision(7, 8), reply(9, 9)], 256 + 2 * 2),
        ([reply(7, 8), decision(9, 9)], 256 + 2 * 2),
        ([reply(7), decision(8, 8)], 259),
        ([decision(8, 8), reply(7)], 259),
        ([reply(7, 8), decision(9, 9), decision(5, 5), reply(4, 4), decision(3, 3)], 256 + 5 * 2),
    ],
)
@pytest.mark.parametrize("max_round_tokens", [2048, 128])
def test_a_trunk_is_computed_once(jobs: list[Job], most: int, max_round_tokens: int) -> None:
    queue = scheduler(max_round_tokens)
    fresh = [
        reply(*j.reply.prompt[256:].tolist()) if j.reply else decision(*j.whole.tokens[256:].tolist()) for j in jobs
    ]
    assert sum(batch.n_tokens for batch in rounds(queue, *fresh)) <= most
    queue.pages.clear()
    assert queue.pages.n_free == queue.pages.n_pages


@pytest.mark.parametrize("first", ["reply", "decision"])
def test_what_one_tenant_computes_no_other_waits_for(first: str) -> None:
    jobs = [reply(7, salt="a"), decision(8, 8, salt="b")]
    found = rounds(scheduler(), *(jobs if first == "reply" else jobs[::-1]))
    assert found[0].n_tokens == 256 + 256 + 2


def test_who_came_first_computes_and_the_other_waits() -> None:
    for jobs in ([reply(7), decision(8, 8)], [decision(8, 8), reply(7)]):
        first, second = rounds(scheduler(), *jobs)[:2]
        assert first.jobs == jobs[:1]
        assert jobs[1] in second.all_jobs


def test_a_reply_waits_for_no_decision_that_came_later() -> None:
    queue = scheduler(max_round_tokens=64)
    early, late = reply(7), decision(8, 8)
    queue.add(early)
    queue.add(late)
    assert queue.next().jobs == [early]
