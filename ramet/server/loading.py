"""Loading: the answers that clients get while the model is being loaded."""

from __future__ import annotations

import threading
from typing import Self

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ramet.server.errors import Unavailable, headers_of
from ramet.server.health import PATHS, HealthReport
from ramet.server.listener import Listener
from ramet.server.running import Server
from ramet.server.running_requests import RunningRequests
from ramet.server.settings import ServerSettings
from ramet.server.unavailable import drop_body, unavailable

_ENDS_S = 1  # for the answers under way when the model is there


class Loading:
    """While its `with` block runs, a thread answers every request at the listener's address with a 503.

    Without an answer the server would look as if it hung, and with a refused connection as if it were down. /health
    says `loading`. Connections that come after the block's end wait for the server itself.
    """

    def __init__(self, listener: Listener, model: str, settings: ServerSettings) -> None:
        self._server = Server(_Answers(model), RunningRequests(), settings.model_copy(update={"drain_s": _ENDS_S}))
        self._sockets = listener.copies()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": self._sockets}, name="ramet-loading", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join()


class _Answers:
    """The ASGI application: one answer to all requests, in the form of each one's route."""

    def __init__(self, model: str) -> None:
        self._report = HealthReport(status="loading", model=model)
        self._error = Unavailable(f"the model {model} is being loaded; ask again when /health answers 200")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await drop_body(scope, receive)
        response = self._response(scope["path"])
        response.headers["connection"] = "close"  # the next request is for the server itself
        await response(scope, receive, send)

    def _response(self, path: str) -> Response:
        if path in PATHS:
            return JSONResponse(self._report.model_dump(), 503, headers_of(self._error))
        return unavailable(path, self._error)
