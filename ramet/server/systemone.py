"""SystemOne: POST /v1/systemone."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import Cancelled, InvalidRequest
from ramet.request import Decision, DecisionRequest
from ramet.server.authentication import Authentication
from ramet.server.bodies import decompress, encoding_of, read_body
from ramet.server.documents import parse_json
from ramet.server.errors import ErrorBody, InvalidBody, UnsupportedBody, render
from ramet.server.metrics import Metrics
from ramet.server.models import Models
from ramet.server.plain_route import PlainRoute
from ramet.server.served import Served
from ramet.server.settings import ServerSettings

SMALL_BODY_BYTES = 16 << 10  # a larger one, or a compressed one, is parsed in a thread
IGNORED_FIELDS = "x-ramet-ignored"
MAX_IGNORED_NAMES = 20

_ERRORS: dict[int, str] = {
    400: "Broken compression, not UTF-8, NaN or an infinity, nested too deep",
    401: "The key is wrong or missing",
    404: "The model is not served here (`unknown_model`)",
    408: "The body did not arrive in time",
    413: "Too many tokens (`max_tokens_exceeded`) or bytes (`body_too_large`); nothing is ever truncated",
    415: "A Content-Encoding other than zstd and gzip, or a multipart body",
    429: "The queue is full; see `retry-after` and `retry-after-ms`",
    500: "An error of the server's own",
    503: "The engine is broken; see /health",
}


class SystemOne:
    """The route for decisions: read, parse, decide, answer."""

    def __init__(self, engine: Served, models: Models, metrics: Metrics, settings: ServerSettings) -> None:
        self._engine = engine
        self._models = models
        self._metrics = metrics
        self._settings = settings

    def route(self, guard: Authentication) -> PlainRoute:
        errors: dict[int | str, dict[str, Any]] = {
            status: {"model": ErrorBody, "description": words} for status, words in _ERRORS.items()
        }
        return PlainRoute(
            "/v1/systemone",
            self.decide,
            guard,
            tags=["decisions"],
            methods=["POST"],
            summary="Answer questions about a state",
            response_class=Response,
            responses={
                200: {"model": Decision, "description": "One answer a question, by the questions' names"},
                422: {"model": InvalidBody, "description": "Every field that is wrong"},
                **errors,
            },
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/DecisionRequest"}},
                    },
                }
            },
        )

    async def decide(self, request: Request) -> Response:
        """Bodies may be zstd or gzip. Top-level fields that mean nothing here are ignored, and named in the
        `x-ramet-ignored` header; a name given twice in one object is refused. `state` may be empty."""
        asked, ignored = await self._parse(request)
        name = self._models.resolve(asked.model)
        try:
            decision = await self._unless_gone(request, asked.model_copy(update={"model": name}))
        except InvalidRequest as error:
            return render(error, tuple(asked.questions))
        self._metrics.count_answers(len(decision.answers), decision.usage)
        headers = {IGNORED_FIELDS: _header_of(ignored)} if ignored else None
        return Response(decision.model_dump_json(), headers=headers, media_type="application/json")

    async def _parse(self, request: Request) -> tuple[DecisionRequest, list[str]]:
        """The request, and the names of its fields that were ignored. A large body leaves the event loop free."""
        encoding = encoding_of(request.headers.get("content-encoding"))
        if request.headers.get("content-type", "").lower().startswith("multipart/"):
            raise UnsupportedBody("multipart bodies carry images, which this model does not take; send JSON")
        limit = self._settings.max_body_bytes
        body = await read_body(request, max_bytes=limit, timeout_s=self._settings.body_timeout_s)
        if encoding is None and len(body) <= SMALL_BODY_BYTES:
            return _parsed(body, None, limit)
        return await asyncio.to_thread(_parsed, body, encoding, limit)

    async def _unless_gone(self, request: Request, asked: DecisionRequest) -> Decision:
        """The engine's answer. A client that goes away cancels the work. Raises Cancelled then."""
        here = asyncio.current_task()
        assert here is not None
        watch = asyncio.ensure_future(_cancel_when_gone(request, here))
        try:
            return await self._engine.decide_async(asked)
        except asyncio.CancelledError:
            if watch.done() and not watch.cancelled() and here.uncancel() == 0:
                raise Cancelled("the client went away") from None
            raise  # the server stops
        finally:
            watch.cancel()


def _parsed(body: bytes, encoding: str | None, max_bytes: int) -> tuple[DecisionRequest, list[str]]:
    plain = body if encoding is None else decompress(body, encoding, max_bytes=max_bytes)
    data = parse_json(plain)
    return DecisionRequest.parse(data), DecisionRequest.ignored(data)


async def _cancel_when_gone(request: Request, work: asyncio.Task[Any]) -> None:
    """Cancels a task when the client goes away. The body was read before, so nothing else can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.cancel()


def _header_of(names: list[str]) -> str:
    shown = [quote(name, safe="", errors="backslashreplace") for name in names[:MAX_IGNORED_NAMES]]
    return ", ".join(shown) + (f", and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
