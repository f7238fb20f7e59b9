"""What a round made known is told while the next one runs, where a device runs by itself: all of it, and in order."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from fakes.cuda import Card
from fixtures.tiny_engine import tiny_engine
from fixtures.waiting import GUARD_S

from ramet.engine import Engine
from ramet.engine.batch import Batch
from ramet.engine.job import Job
from ramet.errors import Cancelled, EngineFault, RametError
from ramet.generation import GenerationRequest, Piece
from ramet.tree import Reads
from ramet.units import Unit
from tests.engine.test_engine import hold, make, tree
from tests.engine.test_replies import assert_idle, together
from tests.engine.test_replies_exact import BLOCK, asked, loaded, prompts


def by_itself(engine: Engine) -> None:
    """As if rounds ran beside the host. To be said before any work comes."""
    engine.runner.launch = engine.runner._here  # type: ignore[method-assign]
    engine.runner.depth = 2


def deep(**settings: Any) -> Engine:
    engine = loaded(**settings)
    by_itself(engine)
    return engine


async def heard(engine: Engine, request: GenerationRequest) -> tuple[list[Piece], RametError | None]:
    """The pieces that came, and what came instead of the last."""
    pieces = []
    try:
        async for piece in engine.writer.stream(request):
            pieces.append(piece)
    except RametError as error:
        return pieces, error
    return pieces, None


def ids(pieces: list[Piece]) -> list[int]:
    return [position.token for piece in pieces for position in piece.positions]


def test_the_same_replies_as_where_each_round_is_waited_for() -> None:
    with loaded(chunk_size="4") as engine:
        requests = [asked(p, max_tokens=n) for n, p in enumerate(prompts(engine, [9, 20, 31, 5, 8, 1]), 1)]
        expected = [engine.writer.generate(each) for each in requests]

    async def every(engine: Engine) -> list[tuple[list[Piece], RametError | None]]:
        return await asyncio.gather(*(heard(engine, each) for each in requests))

    with deep(chunk_size="4") as engine:
        assert [each.tokens for each in together(engine, requests)] == [each.tokens for each in expected]
        found = asyncio.run(every(engine))
        assert_idle(engine)
    for (pieces, error), whole in zip(found, expected, strict=True):
        assert error is None
        assert ids(pieces) == whole.tokens
        assert pieces[-1].finish == whole.finish
        assert sum(piece.n_steps for piece in pieces) == whole.n_steps


@pytest.mark.parametrize("depth", [1, 2])
def test_what_was_known_before_a_round_failed_is_told_before_the_fault(depth: int) -> None:
    with loaded(chunk_size="3") as engine:
        if depth == 2:
            by_itself(engine)
        (prompt,) = prompts(engine, [BLOCK])
        launch, seen, n_left = engine.runner.launch, [], [0]

        def failing(batch: Batch) -> Any:
            seen.extend(job.reply for job in batch.all_jobs)
            n_left[0] -= 1
            if n_left[0] < 0:
                raise RuntimeError("no")
            return launch(batch)

        engine.runner.launch = failing  # type: ignore[method-assign]
        for n in range(2, 9):  # rounds, behind some of which more is known
            seen.clear()
            n_left[0] = n
            pieces, fault = asyncio.run(heard(engine, asked(prompt, ignore_eos=True)))
            assert isinstance(fault, EngineFault)
            assert ids(pieces) == seen[0].tokens
            assert engine.fault is None
        assert ids(pieces)
        assert_idle(engine)


def test_what_was_known_when_the_engine_is_closed_is_told_before_its_end() -> None:
    engine = deep(chunk_size="3")
    (prompt,) = prompts(engine, [BLOCK])
    begun = threading.Event()

    async def told() -> tuple[list[Piece], RametError | None]:
        task = asyncio.ensure_future(heard(engine, asked(prompt, max_tokens=400, ignore_eos=True)))
        await asyncio.to_thread(begun.wait, 30)
        await asyncio.to_thread(engine.close)
        return await task

    launch, seen = engine.runner.launch, []

    def noticed(batch: Batch) -> Any:
        seen.extend(job.reply for job in batch.all_jobs)
        if len(seen) == 9:
            begun.set()
        return launch(batch)

    engine.runner.launch = noticed  # type: ignore[method-assign]
    pieces, error = asyncio.run(told())
    assert isinstance(error, Cancelled)
    assert ids(pieces) == seen[0].tokens != []


def test_replies_that_end_and_wait_and_give_up_pages_tell_all() -> None:
    with deep(cache_bytes=2**16, chunk_size="4") as engine:
        n = int(engine.stats()["pages"]) * engine.cache.pages.page_size // 4
        requests = [asked(p, max_tokens=n, ignore_eos=True) for p in prompts(engine, [9] * 6)]

        async def every() -> list[tuple[list[Piece], RametError | None]]:
            return await asyncio.gather(*(heard(engine, each) for each in requests))

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(asyncio.run, every()).result()
        assert [(len(ids(pieces)), error) for pieces, error in found] == [(n, None)] * 6
        assert engine.stats()["preemptions_total"] > 0
        assert engine.stats()["reply_tokens_total"] == 6 * n
        assert_idle(engine)


def test_callers_that_raise_leave_nobody_without_an_answer() -> None:
    """One as its reply ends, and another by what the same step made known to it."""
    with tiny_engine("qwen3") as engine:
        by_itself(engine)
        begun, ended = threading.Event(), threading.Event()

        def last(piece: Piece) -> None:
            if piece.finish:
                ended.set()
                raise RuntimeError("no")

        def beside(_: Piece) -> None:
            begun.set()
            if ended.is_set():
                raise RuntimeError("no")

        replies = [engine.writer.start(GenerationRequest((1,), 10**4, ignore_eos=True), beside)[0]]
        assert begun.wait(GUARD_S)
        replies.append(engine.writer.start(GenerationRequest((2,), 5, ignore_eos=True), last)[0])
        for reply in replies:
            assert isinstance(reply.exception(), EngineFault)


def test_who_goes_while_others_come_is_not_overlooked() -> None:
    """One goes in the very moment in which the engine looks whether another is still there."""

    class Other(Future[Reads]):
        def cancelled(self) -> bool:
            goes.cancel()
            return super().cancelled()

    with make() as engine:
        free = hold(engine)
        first = engine.submit(tree(seed=1))
        while not engine._loop.scheduler.jobs.in_flight:
            pass
        launch, launched = engine.runner.launch, []

        def noted(batch: Batch) -> Any:
            launched.extend(job.future for job in batch.jobs)
            return launch(batch)

        engine.runner.launch = noted  # type: ignore[method-assign]
        goes = engine.submit(tree(seed=2))
        other = Job(tree(seed=3), Other())
        engine._inbox.put(other)
        free.set()
        other.future.result()
        assert first.done()
        assert goes.cancelled()
        assert launched == [other.future]


def test_a_launch_that_fails_waits_for_what_it_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffer is another round's next, and a copy from there may still be due."""
    Card().install(monkeypatch)
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    with make() as engine:
        runner = engine.runner
        runner.depth = 2

        def failing(*_: object) -> None:
            assert not waited
            raise RuntimeError("no")

        monkeypatch.setattr(runner, "_sample", failing)
        with pytest.raises(RuntimeError, match="no"):
            runner.launch(Batch([Unit(tree())]))
        assert waited == [runner.model.device]
