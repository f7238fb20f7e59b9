"""AccessLog: one line for each request, in the log that all other lines go to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet.server.health import PATHS
from ramet.server.openai.reply_counts import ReplyCounts

FORMAT = "%(asctime)s %(levelname)s %(message)s"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"
POLLS = frozenset({*PATHS, "/metrics"})  # probes request these every few seconds
ID_HEADERS = ("x-request-id", "x-typesafe-request-id")
_LOG = logging.getLogger("ramet.server.access")


def log_to_stderr() -> None:
    """Log to stderr, with times and with a line for each request, unless the program has configured logging itself."""
    logging.basicConfig(format=FORMAT, datefmt=TIME_FORMAT, stream=sys.stderr)
    logging.getLogger("ramet").setLevel(logging.INFO)


def note_tokens(request: Request, counts: Sequence[ReplyCounts]) -> None:
    """Let the line of this request add up these counts, as they are when the answer has gone out."""
    request.state.counts = counts


class AccessLog:
    """ASGI middleware, around all others.

    A line has the client, the method and the path, the status (`cut` where the answer did not go out whole), the
    seconds from the head to the answer's end, the tokens of the input, those of them that were found in the cache, the
    tokens of the output, and the request's id. Requests of probes have no line.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in POLLS:
            await self._app(scope, receive, send)
            return
        status, request_id, is_whole, is_gone, is_out, start = 0, "-", False, False, False, time.perf_counter()

        async def heard() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone |= message["type"] == "http.disconnect" and not is_whole
            return message

        async def watched(message: Message) -> None:
            nonlocal status, request_id, is_whole
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                status = message["status"]
                request_id = next((headers[name] for name in ID_HEADERS if name in headers), "-")
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, heard, watched)
            is_out = is_whole and not is_gone and await _sent(scope)
        finally:
            ended = f"{status}" if is_out else f"{status} cut"
            seconds = time.perf_counter() - start
            _LOG.info("%s %s in %.3f s%s id=%s", _called(scope), ended, seconds, _tokens(scope), request_id)


def _called(scope: Scope) -> str:
    """The client, the method and the path as it came, with its escapes, so that it holds no second line; without the
    query, which may hold a secret."""
    client = scope.get("client")
    path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
    return f"{client[0] if client else '-'} {scope['method']} {path}"


async def _sent(scope: Scope) -> bool:
    """Whether the answer has left this machine. An application that runs in another server cannot know, and says
    yes."""
    connection = scope.get("state", {}).get("connection")
    return connection is None or await connection.sent()


def _tokens(scope: Scope) -> str:
    counts: Sequence[ReplyCounts] = scope.get("state", {}).get("counts", ())
    if not counts:
        return ""
    n_in, n_cached, n_out = (sum(getattr(t, name) for t in counts) for name in ("n_prompt", "n_cached", "n_tokens"))
    return f" tokens={n_in} cached={n_cached} written={n_out}"
