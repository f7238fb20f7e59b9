"""cancel_on_disconnect(): work for a client ends when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.errors import Cancelled

T = TypeVar("T")


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Await the work. A client that disconnects cancels it; then this raises Cancelled.

    The request's body must have been read: nothing but a disconnect can arrive any more.
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
