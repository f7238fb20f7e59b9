"""Exchange: what every request gets, whatever its route: an id, a count, and an answer even after a fault."""

from __future__ import annotations

import logging
import random
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet.errors import RametError
from ramet.server.metrics import Metrics
from ramet.server.rendering import render

REQUEST_IDS = ("x-typesafe-request-id", "x-request-id")  # System One's name and OpenAI's, of one id
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOG = logging.getLogger("ramet.server")


class Exchange:
    """ASGI middleware. It is no BaseHTTPMiddleware, which hides from a route that its client disconnected.

    `request.state.request_id` is the id. An address may end with a slash: a redirect to the one without it would lead
    to whatever host the client named.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, status, start = _request_id(scope), 0, time.perf_counter()
        scope.setdefault("state", {})["request_id"] = request_id
        scope = {**scope, "path": scope["path"].rstrip("/") or "/"}

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name in REQUEST_IDS:
                    MutableHeaders(scope=message)[name] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _LOG.exception("request %s failed", request_id)
            if status:  # half an answer is out: only closing the connection shows the failure
                raise
            error = RametError(f"internal error; the server's log has it under request {request_id}")
            await getattr(scope.get("route"), "render", render)(error)(scope, receive, send_with_id)
        finally:
            self._metrics.count_request(_route(scope), status, time.perf_counter() - start)


def _request_id(scope: Scope) -> str:
    """The caller's id when it is sane, else a new one."""
    headers = Headers(scope=scope)
    for name in REQUEST_IDS:
        if _SANE_ID.fullmatch(given := headers.get(name, "")):
            return given
    return f"req_{random.getrandbits(128):032x}"  # no secret, and os.urandom lets go of the interpreter


def _route(scope: Scope) -> str:
    """The route's pattern, never the address itself: callers choose those, and each would be a new series."""
    return getattr(scope.get("route"), "path", "unknown")
