"""Scheduling without a model: budgets, order, chunks, cancellation; every page comes back."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.random_trees import first_path, random_tree

from ramet.cache.pages import Pages
from ramet.engine.batch import Batch
from ramet.engine.job import Job
from ramet.engine.scheduler import Scheduler
from ramet.tree import WHOLE, Limits, Read, Reads, Segment, Tree


def plain(n: int, *, keep: int = 0) -> Job:
    return Job(Tree.of([Segment(np.arange(n), reads=[Read([1])])]), Future(), n_keep=keep)


def marked(batch: Batch) -> list[Reads]:
    """Results that carry their column's id as logit, so that misplaced reads show."""
    trees = [unit.tree for unit in batch.units]
    return [Reads(t.columns.astype(np.float32), np.zeros(len(t.read_rows), np.float32), t.offsets) for t in trees]


def drain(scheduler: Scheduler) -> list[list[tuple[int, int]]]:
    """Run to the end; (n_context, n_rows) of each round's units."""
    rounds = []
    while len(scheduler):
        batch = scheduler.next()
        assert batch.units
        rounds.append([(unit.n_context, unit.tree.n_tokens) for unit in batch.units])
        scheduler.commit(batch, marked(batch))
    return rounds


def test_what_fits_together_shares_a_round_in_order_of_arrival() -> None:
    scheduler = Scheduler(Pages(50, 8), 100)
    for n in (40, 50, 30, 60):
        scheduler.add(plain(n))
    assert drain(scheduler) == [[(0, 40), (0, 50)], [(0, 30), (0, 60)]]


def test_a_long_prompt_goes_in_chunks_and_leaves_half_a_round_to_others() -> None:
    scheduler = Scheduler(Pages(100, 8), 128)
    scheduler.add(plain(400))
    for _ in range(4):
        scheduler.add(plain(50))
    rounds = drain(scheduler)
    assert rounds[0] == [(0, 128)]
    assert sorted(rounds[1]) == [(0, 50), (128, 64)]
    assert max(sum(n for _, n in r) for r in rounds) <= 128
    assert sum(n for r in rounds for _, n in r) == 600


def test_branches_that_do_not_fit_a_round_see_the_trunk_in_pages() -> None:
    scheduler = Scheduler(Pages(100, 8), 64)
    branches = [Segment(np.arange(20), 0, reads=[Read([i])]) for i in range(5)]
    job = Job(Tree.of([Segment(np.arange(60)), *branches]), Future())
    scheduler.add(job)
    assert drain(scheduler) == [[(0, 60)], [(60, 60)], [(60, 40)]]
    assert job.reads.logits.tolist() == [0, 1, 2, 3, 4]


def test_a_canvas_is_never_cut_and_blocks_are_cut_at_their_grid() -> None:
    scheduler = Scheduler(Pages(100, 8), 64)
    job = Job(Tree.of([Segment(np.arange(70), block=32, reads=[Read([1])])]), Future())
    scheduler.add(job)
    assert drain(scheduler) == [[(0, 64)], [(64, 6)]]
    scheduler.add(Job(Tree.of([Segment(np.arange(5)), Segment(np.arange(90), 0, block=32)]), Future()))
    assert drain(scheduler)[:2] == [[(0, 5)], [(5, 59)]]


def test_two_long_jobs_that_pages_cannot_hold_together_go_one_after_the_other() -> None:
    pages = Pages(20, 8)
    scheduler = Scheduler(pages, 32)
    for _ in range(2):
        scheduler.add(plain(100))
    scheduler.add(plain(10))
    assert sum(n for r in drain(scheduler) for _, n in r) == 210
    assert pages.n_free == 20


def test_a_job_that_runs_alone_shares_no_round() -> None:
    scheduler = Scheduler(Pages(50, 8), 100)
    jobs = [plain(10) for _ in range(3)]
    jobs[1].alone = True
    for job in jobs:
        scheduler.add(job)
    assert drain(scheduler) == [[(0, 10)], [(0, 10), (0, 10)]]


class Replies:
    """Courses of as many trees as there are steps, each a canvas below the same prompt, through a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.left, self.n_rows = scheduler, dict[Job, int](), list[int]()

    def begin(self, first: int, *, n_prompt: int = 16, width: int = 16, n_steps: int = 4) -> Job:
        tree = Tree.of([Segment(np.arange(first, first + n_prompt)), Segment(np.arange(width), 0, WHOLE, [Read([1])])])
        course = SimpleNamespace(limits=Limits(n_steps, n_prompt + width, n_prompt + width))
        job = Job(tree, Future(), n_keep=n_prompt, read=course)  # type: ignore[arg-type]
        self.left[job] = n_steps
        self.scheduler.add(job)
        return job

    def round(self) -> list[Job]:
        """The jobs that took part."""
        batch = self.scheduler.next()
        self.n_rows.append(batch.n_tokens)
        for job in self.scheduler.commit(batch, marked(batch)):
            if self.left.get(job, 1) > 1:
                self.left[job] -= 1
                job.n_resumed = job.n_cached
                job.proceed(job.tree, job.n_keep, ())
                self.scheduler.add(job)
        return batch.jobs


def test_courses_leave_half_a_round_to_those_that_take_one() -> None:
    replies = Replies(Scheduler(Pages(100, 8), 80))
    begun = [replies.begin(100 * i, n_steps=20) for i in range(4)]
    for _ in range(4):
        replies.round()
    assert [len(replies.round()) for _ in range(2)] == [4, 4]  # alone they have all of it
    short = plain(30)
    replies.scheduler.add(short)
    turns = [replies.round() for _ in range(2)]
    assert short in turns[0]
    assert {job for turn in turns for job in turn} == {*begun, short}  # who waited is the first of the next round


def test_a_course_begins_when_those_under_way_leave_room() -> None:
    replies = Replies(Scheduler(Pages(100, 8), 64))
    begun = [replies.begin(100 * i, n_steps=3) for i in range(6)]
    while len(replies.scheduler):
        assert sum(job.is_under_way for job in replies.round()) <= 4
    assert all(job.n_resumed is not None for job in begun)
    assert sum(replies.n_rows) == 6 * (16 + 3 * 16)  # each prompt once


def test_courses_whose_pages_would_drive_each_other_out_go_one_after_the_other() -> None:
    replies = Replies(Scheduler(Pages(20, 8), 400))
    for i in range(6):
        replies.begin(200 * i, n_prompt=64)
    while len(replies.scheduler):
        assert replies.round()
    assert sum(replies.n_rows) == 6 * (64 + 4 * 16)


def test_pages_that_are_kept_count_as_room() -> None:
    scheduler = Scheduler(Pages(50, 8), 100)
    for first, last in ((0, 1), (1, 40)):
        for branch in range(first, last):
            scheduler.add(forked(np.arange(64), branch))
        assert len(drain(scheduler)) == 1


def test_what_fits_no_half_of_a_round_does_not_wait_for_the_end_of_a_long_job() -> None:
    scheduler = Scheduler(Pages(400, 8), 128)
    scheduler.add(plain(2000))
    batch = scheduler.next()
    for job in (plain(100), plain(5)):
        scheduler.add(job)
    scheduler.commit(batch, marked(batch))
    rounds = drain(scheduler)
    assert (0, 100) in rounds[1]
    assert (0, 5) in rounds[1]
    assert sum(n for r in rounds for _, n in r) == 2000 - 128 + 105


@pytest.mark.parametrize("seed", range(5))
def test_random_submit_run_fail_and_cancel_ends_with_every_page_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pages = Pages(60, 4)
    scheduler = Scheduler(pages, 40)
    jobs: list[Job] = []
    for _ in range(150):
        kind = rng.integers(0, 6)
        if kind < 2:
            tree = random_tree(rng, vocab_size=9, max_length=20)
            if scheduler.n_pages_for(tree.max_position) <= pages.n_pages:
                jobs.append(Job(tree, Future(), n_keep=first_path(tree)))
                scheduler.add(jobs[-1])
        elif kind == 2 and jobs:
            jobs[rng.integers(len(jobs))].future.cancel()
            scheduler.cancelled()
        elif len(scheduler):
            batch = scheduler.next()
            assert batch.units
            if kind == 3 and rng.random() < 0.3:
                scheduler.drop(batch.jobs, batch)
            else:
                for job in scheduler.commit(batch, marked(batch)):
                    assert job.reads.logits.tolist() == job.tree.columns.tolist()
    drain(scheduler)
    assert pages.n_free + pages.n_indexed == pages.n_pages
    pages.index.clear()
    assert pages.n_free == pages.n_pages


def forked(trunk: np.ndarray, *branches: int, salt: str = "") -> Job:  # type: ignore[type-arg]
    read = [Segment(np.array([b, b + 1]), 0, reads=[Read([b])]) for b in branches]
    return Job(Tree.of([Segment(trunk), *read]), Future(), n_keep=len(trunk), salt=salt)


def test_jobs_of_one_round_share_an_equal_trunk() -> None:
    pages = Pages(50, 8)
    scheduler = Scheduler(pages, 200)
    trunk = np.arange(32)
    jobs = [forked(trunk, 40, 50), forked(trunk, 60), forked(trunk[:31], 70), forked(trunk, 80, salt="other")]
    for job in jobs:
        scheduler.add(job)
    batch = scheduler.next()
    assert [unit.tree.n_tokens for unit in batch.units] == [32 + 3 * 2, 31 + 2, 32 + 2]
    assert batch.n_tokens == 38 + 33 + 34
    done = scheduler.commit(batch, marked(batch))
    assert done == jobs
    assert [job.reads.logits.tolist() for job in jobs] == [[40, 50], [60], [70], [80]]
    assert pages.n_free + pages.n_indexed == 50


def test_a_job_waits_for_a_trunk_that_another_is_computing() -> None:
    pages = Pages(100, 8)
    scheduler = Scheduler(pages, 128)
    trunk = np.arange(400)
    first, second, third = forked(trunk, 7), forked(trunk, 9), forked(np.arange(1000, 1040), 3)
    for job in (first, second, third):
        scheduler.add(job)
    rounds = drain(scheduler)
    assert sum(n for r in rounds for _, n in r) == 400 + 2 + 2 + 42  # the trunk once
    assert second.n_cached == 400
    assert rounds.index(next(r for r in rounds if (0, 42) in r)) < len(rounds) - 1  # the third overtakes the second


def test_a_checkpoint_is_kept_where_requests_part() -> None:
    """The mark lies in a tail that each step replaces: the third finds what the second left where it parted."""
    pages = Pages(50, 8, n_states=12)
    scheduler = Scheduler(pages, 200, grain=8)
    history, found = np.arange(60), []
    for step in range(3):
        tail = np.full(16, 900 + step)
        tree = Tree.of([Segment(np.concatenate([history[: 40 + 8 * step], tail]), reads=[Read([1])])])
        job = Job(tree, Future(), n_keep=48 + 8 * step, marks=(48 + 8 * step,))
        scheduler.add(job)
        drain(scheduler)
        found.append(job.n_cached)
    assert found == [0, 0, 40]


@pytest.mark.parametrize("max_round_tokens", [64, 96, 100])
def test_a_coarse_grain_leaves_work_for_every_round(max_round_tokens: int) -> None:
    scheduler = Scheduler(Pages(200, 8, n_states=30), max_round_tokens, grain=64)
    for start in (0, 1000):
        scheduler.add(forked(np.arange(start, start + 300), 5, 7))
    assert sum(n for r in drain(scheduler) for _, n in r) == 2 * 304


def test_checkpoints_are_kept_where_marks_are_and_found_again() -> None:
    pages = Pages(50, 8, n_states=8)
    scheduler = Scheduler(pages, 200, grain=8)
    tokens = np.arange(40)
    scheduler.add(Job(Tree.of([Segment(tokens, reads=[Read([1])])]), Future(), n_keep=32, marks=(16, 32)))
    batch = scheduler.next()
    assert [(row, slot) for row, slot in batch.units[0].leaves.tolist()] == [(15, 0), (31, 1)]
    scheduler.commit(batch, marked(batch))
    assert (pages.n_checkpoints, pages.n_free_states, pages.n_indexed) == (2, 6, 4)
    assert [pages.match(pages.keys(tokens[:n])).length for n in (40, 31, 15)] == [32, 16, 0]
    edited = tokens.copy()
    edited[20] = 99  # an edit in the middle loses what comes behind it
    assert pages.match(pages.keys(edited)).length == 16


def test_a_job_waits_for_a_trunk_though_there_is_room_for_both() -> None:
    scheduler = Scheduler(Pages(400, 8), 128)
    trunk = np.arange(400)
    jobs = [forked(trunk, 7), forked(trunk, 9), forked(trunk[:300], 3)]
    for job in jobs:
        scheduler.add(job)
    assert sum(n for r in drain(scheduler) for _, n in r) == 400 + 2 + 2 + 2 + 300 % 8
    assert [job.n_cached for job in jobs] == [0, 400, 296]


def test_a_job_waits_for_a_trunk_that_ends_in_the_round_in_which_it_begins() -> None:
    scheduler = Scheduler(Pages(400, 8), 256)
    jobs = [forked(np.arange(96), *range(first, first + 100)) for first in (100, 300)]
    for job in jobs:
        scheduler.add(job)
    assert sum(n for r in drain(scheduler) for _, n in r) == 96 + 2 * 200
    assert jobs[1].n_cached == 96


def test_a_job_that_needs_many_pages_is_not_overtaken_for_ever() -> None:
    """Two of the small ones fit beside each other, none beside the large one; they come without end."""
    scheduler = Scheduler(Pages(40, 8), 64)
    scheduler.add(plain(110))
    large = plain(250)
    scheduler.add(large)
    for _ in range(20):
        scheduler.add(plain(110))
        batch = scheduler.next()
        scheduler.commit(batch, marked(batch))
    assert large not in scheduler.jobs.waiting


def test_pages_of_an_index_that_another_job_continues_can_be_had() -> None:
    """The first two compute the same trunk in one round; the longer one's later pages follow the other's in the
    index."""
    tail = np.arange(1000, 1100)
    trunk = np.arange(100)
    scheduler = Scheduler(Pages(30, 8), 120)
    scheduler.add(Job(Tree.of([Segment(trunk[:50], reads=[Read([1])])]), Future(), n_keep=50))
    scheduler.add(forked(np.concatenate([trunk, tail]), *range(60)))
    drain(scheduler)


def test_a_chunk_that_is_small_for_its_blocks_goes_where_nothing_else_can() -> None:
    """The second waits for pages that the first holds; half a round is one row of the first, up to its block's end."""
    scheduler = Scheduler(Pages(20, 8), 64)
    for _ in range(2):
        scheduler.add(Job(Tree.of([Segment(np.arange(31)), Segment(np.arange(90), 0, 32, [Read([1])])]), Future()))
    assert sum(n for r in drain(scheduler) for _, n in r) == 2 * 121


@pytest.mark.parametrize("block", [3, 16, WHOLE])
def test_rows_that_see_what_follows_are_not_kept_for_others(block: int) -> None:
    pages = Pages(20, 8)
    scheduler = Scheduler(pages, 64)
    for own in (block, 1, block):
        tree = Tree.of([Segment(np.arange(20), block=own, reads=[Read([1])])])
        job = Job(tree, Future(), n_keep=20)
        scheduler.add(job)
        drain(scheduler)
        assert job.n_cached == 0


def test_blocks_that_end_with_pages_are_kept_for_their_like() -> None:
    scheduler = Scheduler(Pages(20, 8), 64)
    for block, n_cached in ((4, 0), (8, 0), (1, 0), (4, 16), (1, 16)):
        job = Job(Tree.of([Segment(np.arange(20), block=block, reads=[Read([1])])]), Future(), n_keep=20)
        scheduler.add(job)
        drain(scheduler)
        assert job.n_cached == n_cached


def test_a_branch_is_not_joined_with_the_rest_of_a_trunk() -> None:
    """The same rows behind the same pages, but one forks there: in batch-invariant mode its bits are others."""
    scheduler = Scheduler(Pages(50, 8), 200)
    trunk, rest = np.arange(16), np.arange(40, 50)
    scheduler.add(forked(trunk, 7))
    drain(scheduler)
    straight = Tree.of([Segment(np.concatenate([trunk, rest]), reads=[Read([1])])])
    branched = Tree.of([Segment(trunk), Segment(rest, 0, reads=[Read([1])])])
    for tree in (straight, branched, straight):
        scheduler.add(Job(tree, Future(), n_keep=16))
    batch = scheduler.next()
    assert [(unit.n_context, unit.continues) for unit in batch.units] == [(16, True), (16, False)]


def test_a_job_resumes_behind_forks_that_its_pages_pass() -> None:
    """What is found ends in a branch: its siblings hang at the fork before it."""
    scheduler = Scheduler(Pages(50, 8), 200)
    for branch in (1, 2):
        own = Segment(np.array([branch]), 0, reads=[Read([1])])
        job = Job(Tree.of([Segment(np.arange(20)), Segment(np.arange(30), 0), own]), Future(), n_keep=50)
        scheduler.add(job)
        batch = scheduler.next()
        scheduler.commit(batch, marked(batch))
    assert [(unit.n_context, unit.tree.n_tokens) for unit in batch.units] == [(48, 2), (20, 1)]
