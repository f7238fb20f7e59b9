"""Presence: whether the client that asked is still there, and whether the server still is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Scope

from ramet.errors import Cancelled
from ramet.server.errors import Unavailable

T = TypeVar("T")


class Work:
    """What is done for clients, so that a server that stops can end it with an answer."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()

    @classmethod
    def of(cls, scope: Scope) -> Work:
        """That of the application that a request came to."""
        work = scope["app"].state.work
        assert isinstance(work, Work)
        return work

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the block a task works for a client. Raises Unavailable once the server waits no longer."""
        task = asyncio.current_task()
        assert task is not None
        if self._ended.is_set():
            raise Unavailable(_STOPPED)
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._ended.is_set() and task.uncancel() == 0:
                raise Unavailable(_STOPPED) from None
            raise
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """Cancel what runs; whatever is begun from now on ends at once."""
        self._ended.set()
        for task in self._tasks:
            task.cancel()


_STOPPED = "the server stops, and this was not done in the time that it waits (drain_s); ask again, there or elsewhere"


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of the work. A client that goes away cancels it: raises Cancelled then.

    Only for a request whose body was read: nothing else can arrive any more.
    """
    here = asyncio.current_task()
    assert here is not None
    watch = asyncio.ensure_future(_cancel_when_gone(request, here))
    try:
        return await work
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled() and here.uncancel() == 0:
            raise Cancelled("the client went away") from None
        raise  # the server stops
    finally:
        watch.cancel()


async def _cancel_when_gone(request: Request, work: asyncio.Task[Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.cancel()
