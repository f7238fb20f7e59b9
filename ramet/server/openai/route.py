"""TextRoute: what the routes for chat and completions have in common: read, check, write, answer."""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RametError
from ramet.server.access_log import note_tokens
from ramet.server.cancel_on_disconnect import cancel_on_disconnect
from ramet.server.endpoint import Endpoint
from ramet.server.openai.answer import TextUsage
from ramet.server.openai.errors import OpenAIErrorBody, render
from ramet.server.openai.events import DONE, Events, event
from ramet.server.openai.requested_replies import R, RequestedReplies
from ramet.server.openai.text_reply import Delta
from ramet.server.openai.text_request import StreamOptions
from ramet.server.parse_body import parse_body


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that every part of an answer begins with."""

    id: str
    created: int  # seconds since 1970
    model: str

    def fields(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self.model}


class TextRoute(Endpoint, Generic[R]):
    """A route that writes text. What differs is the request, and the form of answers."""

    tag = "text"
    prefix: ClassVar[str]  # of ids
    request: type[R]
    answer: type[BaseModel]
    error_body = OpenAIErrorBody
    render = staticmethod(render)
    errors: ClassVar[Mapping[int, str]] = {
        400: "A parameter that is wrong or not supported here, which `param` names; too many tokens; no JSON",
        401: "The key is wrong or missing",
        404: "The model is not served here",
        408: "The body did not arrive in time",
        413: "Too many bytes",
        415: "A Content-Encoding other than zstd and gzip, or a multipart body",
        429: "The queue is full; see `retry-after` and `retry-after-ms`",
        500: "An error of the server's own",
        501: "The model that is served writes no text",
        503: "The engine is broken; see /health",
    }

    def responses(self) -> dict[int | str, dict[str, Any]]:
        words = "The reply; with `stream`, events"
        return {200: {"model": self.answer, "description": words, "content": {"text/event-stream": {}}}}

    async def respond(self, request: Request) -> Response:
        """Errors come with their status before anything is sent. Of a stream they are the last event, if it has begun.
        A client that goes away cancels its work."""
        requested = await parse_body(
            request, self._settings, self._begun, at_once=0
        )  # templates are programs of their own
        note_tokens(request, requested.counts)
        try:
            return await self._answered(request, requested)
        except RametError as error:
            return render(error, requested.request.places)

    def _begun(self, data: Any) -> RequestedReplies[R]:
        wanted = self.request.parse(data)
        model = self._engine.name if wanted.model is None else self._models.resolve(wanted.model)
        writer = self._engine.writer
        wanted.check_logprobs(self._settings.max_logprobs)
        return RequestedReplies.of(wanted, model, writer)

    async def _answered(self, request: Request, requested: RequestedReplies[R]) -> Response:
        head = AnswerHead(f"{self.prefix}-{random.getrandbits(128):032x}", int(time.time()), requested.model)
        if requested.request.stream:
            events = self._events(head, requested)
            first = await cancel_on_disconnect(request, anext(events))
            return Events(first, events, requested.request.places)
        try:
            replies = await cancel_on_disconnect(request, requested.whole())
        finally:
            self._metrics.count_text(requested.counts)
        whole = self.whole(head, requested, replies, TextUsage.of(requested.counts))
        return Response(whole.model_dump_json(), media_type="application/json")

    async def _events(self, head: AnswerHead, requested: RequestedReplies[R]) -> AsyncGenerator[bytes, None]:
        options = requested.request.stream_options or StreamOptions()
        try:
            async with aclosing(requested.deltas()) as deltas:
                begun = False
                async for i, delta in deltas:
                    usage = TextUsage.of(requested.counts) if options.continuous_usage_stats else None
                    for part in self.parts(head, requested, i, delta, usage, first=not begun):
                        yield event(part.model_dump_json())
                    begun = True
        finally:
            self._metrics.count_text(requested.counts)
        if options.include_usage:
            yield event(self.last(head, TextUsage.of(requested.counts)).model_dump_json())
        yield DONE

    @abstractmethod
    def whole(
        self, head: AnswerHead, requested: RequestedReplies[R], replies: Sequence[Delta], usage: TextUsage
    ) -> BaseModel:
        """The answer without `stream`."""

    @abstractmethod
    def parts(
        self,
        head: AnswerHead,
        requested: RequestedReplies[R],
        index: int,
        delta: Delta,
        usage: TextUsage | None,
        *,
        first: bool,
    ) -> Sequence[BaseModel]:
        """The events for what a reply has added, each with the usage, if the request wants it."""

    @abstractmethod
    def last(self, head: AnswerHead, usage: TextUsage) -> BaseModel:
        """The event that reports the usage."""
