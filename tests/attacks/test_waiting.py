"""Bodies that wait for their turn: each is kept as it was sent, and only for a client that is there."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from attacks.bodies import LIMIT, NOUL, of_state, raw
from attacks.bounded import bounded
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer
from fixtures.raw_client import answer, connected
from fixtures.waiting import GUARD_S, wait_until

from ramet.server.settings import ServerSettings
from ramet.turns import LARGE, HasGone, Turns

N = 30
LARGE_BODY = json.dumps({"state": "x" * LARGE, "questions": {"q": NOUL}}).encode()


def asking(body: bytes, *headers: str) -> bytes:
    lines = ("POST /v1/systemone HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


def parsers(live: LiveServer) -> Turns:
    found: Turns = live.server.config.app.state.parsers  # type: ignore[union-attr]
    return found


def held(pool: Turns) -> threading.Event:
    """No large body has its turn before this is set."""
    go, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go.wait(GUARD_S)

    pool.submit(work, size=LARGE)
    assert begun.wait(GUARD_S)
    return go


def test_it_is_decompressed_in_its_turn(serve: Serve) -> None:
    """Kilobytes on the wire are no megabytes in the line."""
    live = serve(StubEngine())
    body = gzip.compress(raw('{"state": "', "a", '"}'))
    pool, sent = parsers(live), asking(body, "Content-Encoding: gzip")
    go = held(pool)
    with ExitStack() as stack, bounded(N * LIMIT >> 21):
        clients = [stack.enter_context(connected(live.port)) for _ in range(N)]
        for client in clients:
            client.sendall(sent)
        wait_until(lambda: vars(pool)["_n_waiting"] == N)
        go.set()
        assert {answer(client)[:12] for client in clients} == {b"HTTP/1.1 422"}


def test_one_that_is_small_when_decompressed_waits_for_none_that_is_large(serve: Serve) -> None:
    live = serve(StubEngine())
    go = held(parsers(live))
    with connected(live.port) as client:
        client.sendall(asking(gzip.compress(of_state("a", size=1 << 15)), "Content-Encoding: gzip"))
        assert answer(client).startswith(b"HTTP/1.1 200 ")
    go.set()


def test_a_client_that_hangs_up_leaves_the_line(serve: Serve) -> None:
    live = serve(StubEngine())
    pool = parsers(live)
    go = held(pool)
    with connected(live.port) as client:
        client.sendall(asking(LARGE_BODY))
        wait_until(lambda: vars(pool)["_n_waiting"])
    wait_until(lambda: not live.server.server_state.tasks)
    assert vars(pool)["_n_waiting"] == 0
    go.set()


@pytest.mark.parametrize("size", [0, LARGE])
def test_what_nobody_waits_for_is_not_kept(size: int) -> None:
    class Work:
        def __call__(self, _: HasGone) -> None:
            raise AssertionError

    async def cancelled(pool: Turns) -> weakref.ref[Work]:
        work = Work()
        task = asyncio.create_task(pool.run(work, size=size))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return weakref.ref(work)

    pool = Turns(1, "test")
    go = held(pool)
    left = asyncio.run(cancelled(pool))
    assert left() is None
    go.set()
    assert pool.submit(lambda: 7, size=size).result(GUARD_S) == 7


@pytest.mark.parametrize(
    ("keys", "headers", "whose"),
    [
        ((), ("Bearer a", "Bearer b", "c"), {"127.0.0.1"}),
        (("a", "b"), ("Bearer a", "bearer a", "BEARER  a", "Bearer b"), {"a", "b"}),
    ],
)
def test_no_client_has_more_turns_than_another(
    serve: Serve, keys: tuple[str, ...], headers: tuple[str, ...], whose: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it writes into a header."""
    live = serve(StubEngine(), ServerSettings.model_validate({"api_key": keys}))
    pool, seen = parsers(live), set[str]()
    submit: Callable[..., Any] = pool.submit

    def noted(work: Any, *, size: int = 0, who: str = "") -> Any:
        seen.add(who)
        return submit(work, size=size, who=who)

    monkeypatch.setattr(pool, "submit", noted)
    for header in headers:
        with connected(live.port) as client:
            client.sendall(asking(LARGE_BODY, f"Authorization: {header}"))
            assert answer(client).startswith(b"HTTP/1.1 200 ")
    assert seen == whose
