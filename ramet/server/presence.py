"""Presence: whether the client that asked is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.errors import Cancelled

T = TypeVar("T")


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
