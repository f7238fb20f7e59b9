"""PlainRoute: documented by FastAPI, run by starlette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response

from ramet.errors import RametError
from ramet.server.authentication import Authentication
from ramet.server.rendering import render
from ramet.server.running_requests import RunningRequests


class PlainRoute(APIRoute):
    """A guarded route whose endpoint takes the request and gives the response.

    For a route that is asked often: what FastAPI does around an endpoint to call its dependencies takes longer than
    reading and checking a request. `documentation` is what APIRoute takes. `render` gives errors their shape, those
    of its middleware too.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        guard: Authentication,
        *,
        render: Callable[[RametError], Response] = render,
        **documentation: Any,
    ) -> None:
        super().__init__(path, endpoint, dependencies=[Depends(guard.check)], **documentation)

        async def guarded(request: Request) -> Response:
            try:
                await guard.check_request(request)
                with RunningRequests.of(request.scope).running():
                    return await endpoint(request)
            except RametError as error:
                return render(error)

        self.render = render
        self.app = request_response(guarded)
