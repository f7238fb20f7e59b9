"""Turns: small work overtakes large, and each client has its turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from fixtures.waiting import GUARD_S, wait_until

from ramet import turns
from ramet.turns import LARGE, PATIENCE, Turns


def held(pool: Turns, n: int, size: int) -> threading.Event:
    """What keeps n threads busy until it is set."""
    go, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        assert go.wait(GUARD_S)

    for _ in range(n):
        pool.submit(wait, size=size)
    for _ in range(n):
        assert begun.acquire(timeout=GUARD_S)
    return go


def noting(into: list[str], name: str) -> Callable[[], None]:
    return lambda: into.append(name)


def test_large_work_leaves_a_thread_to_the_small() -> None:
    pool = Turns(2, "test")
    large = [pool.submit(threading.Event().wait, size=LARGE)]
    go = held(pool, 1, size=0)
    go.set()
    assert pool.submit(lambda: 7, size=LARGE - 1).result(GUARD_S) == 7
    assert not large[0].done()


def test_each_client_has_its_turn() -> None:
    pool, done = Turns(1, "test"), list[str]()
    go = held(pool, 1, size=0)
    last = [
        pool.submit(noting(done, f"{who}{i}"), who=who) for who, n in (("a", 4), ("b", 2), ("c", 1)) for i in range(n)
    ]
    go.set()
    for each in last:
        each.result(GUARD_S)
    assert done == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_small_work_overtakes_large_but_not_for_ever() -> None:
    pool, done = Turns(1, "test"), list[str]()
    go = held(pool, 1, size=0)
    all_of_it = [pool.submit(noting(done, "large"), size=LARGE)]
    all_of_it += [pool.submit(noting(done, "small")) for _ in range(2 * PATIENCE)]
    go.set()
    for each in all_of_it:
        each.result(GUARD_S)
    assert done.index("large") == PATIENCE


def test_what_is_cancelled_is_not_begun_or_hears_of_it() -> None:
    pool, begun, heard, never = Turns(1, "test"), threading.Event(), threading.Event(), list[str]()

    def works(has_gone: Callable[[], bool]) -> None:
        begun.set()
        wait_until(has_gone)
        heard.set()

    async def cancels() -> None:
        running = asyncio.create_task(pool.run(works))
        await asyncio.to_thread(begun.wait, GUARD_S)
        waiting = asyncio.create_task(pool.run(lambda _: never.append("begun")))
        await asyncio.sleep(0)
        for each in (waiting, running):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each

    asyncio.run(cancels())
    assert heard.wait(GUARD_S)
    assert pool.submit(lambda: 1).result(GUARD_S) == 1
    assert not never


def test_threads_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "IDLE_S", 0.01)
    pool = Turns(3, "test-idle")
    for _ in range(2):
        assert [pool.submit(lambda i=i: i, size=i * LARGE).result(GUARD_S) for i in range(5)] == [*range(5)]  # type: ignore[misc]
        wait_until(lambda: not [each for each in threading.enumerate() if each.name == "test-idle"])


def test_an_error_is_its_callers() -> None:
    pool = Turns(1, "test")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(GUARD_S)
    assert pool.submit(lambda: 1).result(GUARD_S) == 1
