"""PlainRoute: a route that FastAPI documents and starlette runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response

from ramet.errors import RametError
from ramet.server.authentication import Authentication
from ramet.server.rendering import render
from ramet.server.running_requests import RunningRequests


class PlainRoute(APIRoute):
    """A guarded route whose endpoint takes the request and returns the response.

    It skips what FastAPI does around an endpoint to call its dependencies, which takes longer than reading and
    checking a request. `request_model` documents the body, which the endpoint reads by itself. `documentation` is
    what APIRoute takes. `render` makes the responses for errors, those of the middleware too.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        guard: Authentication,
        request_model: type[BaseModel],
        *,
        render: Callable[[RametError], Response] = render,
        **documentation: Any,
    ) -> None:
        schema = {"$ref": f"#/components/schemas/{request_model.__name__}"}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        extra = {"requestBody": body}
        super().__init__(path, endpoint, dependencies=[Depends(guard.check)], openapi_extra=extra, **documentation)

        async def guarded(request: Request) -> Response:
            try:
                await guard.check_request(request)
                with RunningRequests.of(request.scope).running():
                    return await endpoint(request)
            except RametError as error:
                return render(error)

        self.request_model, self.render = request_model, render
        self.app = request_response(guarded)
