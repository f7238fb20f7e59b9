"""Events: a stream of server-sent events, one JSON value each.

An event here is one line; what sse-starlette adds (pings, events by name, a hold on the server's shutdown) has no use.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ramet.errors import RametError
from ramet.server.cancel_on_disconnect import cancel_on_disconnect
from ramet.server.openai.errors import error_object
from ramet.server.running_requests import RunningRequests

DONE = b"data: [DONE]\n\n"
_LOG = logging.getLogger("ramet.server")


def event(json_text: str) -> bytes:
    """An event with one JSON value, which has no line breaks, so that one line holds it."""
    return f"data: {json_text}\n\n".encode()


class Events(StreamingResponse):
    """The events of a generator, of which the first has come already. An error, or the server's stop, becomes the last
    event, and no DONE follows. A client that disconnects closes the generator."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], places: Mapping[str, str]) -> None:
        self._first, self._rest, self._places = first, rest, places
        super().__init__(rest, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, last = Request(scope, receive), b""
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                with RunningRequests.of(scope).running():
                    await cancel_on_disconnect(request, self._pour(send))
            except RametError as error:
                last = self._cut_off(error)
            except Exception:
                request_id = request.state.request_id
                _LOG.exception("the stream of request %s failed", request_id)
                last = self._cut_off(RametError(f"internal error; the server's log has it under request {request_id}"))
            await send({"type": "http.response.body", "body": last})

    async def _pour(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for each in self._rest:
            await send({"type": "http.response.body", "body": each, "more_body": True})

    def _cut_off(self, error: RametError) -> bytes:
        body = {"error": error_object(error, self._places)}
        return event(json.dumps(body, ensure_ascii=False, separators=(",", ":")))
