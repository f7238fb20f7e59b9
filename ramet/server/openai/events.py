"""Events: a stream of server-sent events, one JSON value each.

Starlette's own StreamingResponse does it: an event here is one line, and what sse-starlette adds (pings, events by
name, a hold on the server's shutdown) has no use.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ramet.errors import RametError
from ramet.server.openai.errors import described
from ramet.server.presence import Work

DONE = b"data: [DONE]\n\n"
_LOG = logging.getLogger("ramet.server")


def event(json_text: str) -> bytes:
    """JSON has no line breaks of its own, so that a line holds it."""
    return f"data: {json_text}\n\n".encode()


class Events(StreamingResponse):
    """The events of a generator whose first has come already. An error after it becomes the last event; a client that
    goes away closes the generator, and so does a server that stops and waits no longer."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], places: Mapping[str, str]) -> None:
        self._rest, self._places = rest, places
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(self._after(first), headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._work = Work.of(scope)
        async with aclosing(self._rest):
            await super().__call__(scope, receive, send)

    async def _after(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        try:
            while (each := await self._next()) is not None:
                yield each
        except RametError as error:
            yield event(json.dumps(described(error, self._places)[1], ensure_ascii=False))
        except Exception:
            _LOG.exception("a stream failed")
            yield event(json.dumps(described(RametError("internal error; see the server's log"), self._places)[1]))

    async def _next(self) -> bytes | None:
        with self._work.running():
            return await anext(self._rest, None)
