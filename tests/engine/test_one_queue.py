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


def other(seed: int, n: int, n_tokens: int) -> Job:
    """A reply that shares nothing."""
    ids = np.random.default_rng(seed).integers(1000, 2000, n).astype(np.int32)
    beginning = Beginning(
        n - 1, ids[n - 1 :], np.ones(1, np.bool_), n, n, n + n_tokens, frozenset(), UnmaskPolicy(block=1),
        Draws(0.0, 0, 1.0, Noise(n)),
    )  # fmt: skip
    return Job.of(Reply(ids, beginning))


def rounds(queue: Scheduler, *jobs: Job) -> list[Batch]:
    """All of them, until nothing is left."""
    for job in jobs:
        queue.add(job)
    found = []
    while len(queue):
        found.append(batch := queue.next())
        assert batch
        ended(queue, batch)
    return found


def ended(queue: Scheduler, batch: Batch) -> list[Job]:
    """Commit a round: the jobs that ended with it."""
    reads = [
        Reads(tree.columns.astype(np.float32), np.zeros(len(tree.read_rows), np.float32), tree.offsets)
        for tree in (unit.tree for unit in batch.units)
    ]
    n = 0 if batch.step is None else len(batch.step.chunks.reads)
    drawn = DrawnRows(np.zeros(n, np.int32), np.ones(n, np.float32), np.zeros(n, np.float32))
    return queue.commit(batch, reads, drawn)


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
    queue.pages.index.clear()
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


def test_a_decision_waits_for_no_prompt_that_finds_no_page() -> None:
    """The decision shares its trunk, but fits a round and needs no page."""
    queue = scheduler(n_pages=20)
    queue.add(other(0, 80, 200))
    for _ in range(5):
        ended(queue, queue.next())
    late = decision(8, 8)
    queue.add(reply(7))
    queue.add(late)
    assert late in ended(queue, queue.next())


def test_a_reply_steps_in_the_round_behind_its_prompt() -> None:
    """Trees that wait leave it the rows."""
    queue = scheduler(max_round_tokens=64)
    first = other(1, 30, 5)
    queue.add(first)
    ended(queue, queue.next())
    for n in range(4):
        queue.add(Job(Tree.of([Segment(np.arange(60) + 100 * n, reads=[Read([1])])]), Future()))
    batch = queue.next()
    assert batch.step is not None
    assert batch.step.jobs == [first]


def test_replies_that_are_to_run_alone_do_so_beside_a_tree_that_waits_for_their_pages() -> None:
    """One of them fails in every round: alone it ends with its fault, and the others are done."""
    queue = scheduler(max_round_tokens=64, n_pages=24)
    bad, good = other(1, 40, 150), other(2, 40, 150)
    queue.add(bad)
    queue.add(good)
    for _ in range(60):
        ended(queue, queue.next())
    branches = [Segment(np.arange(5), 0, reads=[Read([1])]) for _ in range(3)]
    tree = Job(Tree.of([Segment(np.arange(100) + 5000), *branches]), Future(), n_keep=100)
    tree.alone = bad.alone = good.alone = True  # as behind a round that failed
    queue.add(tree)
    n_failed = 0
    while len(queue):
        batch = queue.next()
        if bad not in batch.all_jobs:
            ended(queue, batch)
            continue
        assert batch.all_jobs == [bad]
        n_failed += 1
        queue.drop([bad], batch)
    assert n_failed == 1
    assert good.reply is not None
    assert len(good.reply.tokens) == 150


def test_a_reply_that_gives_up_its_pages_is_still_to_run_alone() -> None:
    queue = scheduler(max_round_tokens=64, n_pages=8)
    jobs = [other(1, 40, 70), other(2, 40, 70)]
    for job in jobs:
        queue.add(job)
    ended(queue, queue.next())
    while jobs[1] not in queue.jobs.waiting_replies:
        jobs[1].alone = True
        ended(queue, queue.next())
    assert jobs[1].alone


def test_trees_get_the_fault_where_a_caller_of_a_reply_raises() -> None:
    """What a step made known is given to its caller before the trees of its round have left the queue."""

    def raises(_: object) -> None:
        raise RuntimeError("no")

    queue = scheduler()
    lone, late = other(1, 30, 1), decision(8, 8)
    assert lone.reply is not None
    lone.reply.on_piece = raises
    queue.add(lone)
    ended(queue, queue.next())
    queue.add(late)
    batch = queue.next()
    assert set(batch.all_jobs) == {lone, late}
    with pytest.raises(RuntimeError):
        ended(queue, batch)
    assert late in queue.abandon()
