"""SystemOne: POST /v1/systemone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ramet.decision import Decision
from ramet.errors import InvalidRequest
from ramet.problems import MAX_FIELDS
from ramet.quoting import cut
from ramet.request import DecisionRequest
from ramet.server.access_log import note_tokens
from ramet.server.cancel_on_disconnect import cancel_on_disconnect
from ramet.server.endpoint import Endpoint
from ramet.server.openai.reply_counts import ReplyCounts
from ramet.server.parse_body import parse_body
from ramet.server.rendering import InvalidBody, render

IGNORED_FIELDS = "x-ramet-ignored"
MAX_IGNORED_NAMES = 20


class SystemOne(Endpoint):
    """The route for decisions: read, parse, decide, answer."""

    path = "/v1/systemone"
    summary = "Answer questions about a state"
    tag = "decisions"
    name = "decide"
    request = DecisionRequest
    errors: ClassVar[Mapping[int, str]] = {
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

    def responses(self) -> dict[int | str, dict[str, Any]]:
        return {
            200: {"model": Decision, "description": "One answer a question, by the questions' names"},
            422: {"model": InvalidBody, "description": "Every field that is wrong"},
        }

    async def respond(self, request: Request) -> Response:
        """Bodies may be zstd or gzip. Top-level fields that mean nothing here are ignored, and named in the
        `x-ramet-ignored` header; a name given twice in one object is refused. `state` may be empty."""
        wanted, ignored = await parse_body(request, self._settings, _parsed)
        ignored += _of_the_address(request)
        name = self._models.resolve(wanted.model)
        try:
            work = self._engine.decide_async(wanted.model_copy(update={"model": name}))
            decision = await cancel_on_disconnect(request, work)
        except InvalidRequest as error:
            return render(error, tuple(wanted.questions))
        self._metrics.count_answers(len(decision.answers), decision.usage)
        usage = decision.usage
        note_tokens(request, [ReplyCounts(usage.input_tokens, usage.x_cached_tokens, usage.output_tokens)])
        headers = {IGNORED_FIELDS: _header_of(ignored)} if ignored else None
        return Response(decision.model_dump_json(), headers=headers, media_type="application/json")


def _parsed(data: Any) -> tuple[DecisionRequest, list[str]]:
    """The request, and the names of the fields that it ignores."""
    return DecisionRequest.parse(data), DecisionRequest.ignored(data)


def _of_the_address(request: Request) -> list[str]:
    """The names in the query of the address that the route ignores. Raises InvalidRequest for a name that would change
    an answer; one of our own fields is such a name, since it belongs in the body."""
    names = list(request.query_params)
    if len(names) > MAX_FIELDS:
        raise InvalidRequest(f"the address has {len(names)} fields; at most {MAX_FIELDS} are read")
    refused = [(name, why) for name, why in DecisionRequest.refused(names)]
    ours = [(name, "belongs in the body") for name in names if name in DecisionRequest.model_fields]
    for name, why in (*ours, *refused):
        raise InvalidRequest(f"in the address: {why}", field=name)
    return names


def _header_of(names: list[str]) -> str:
    listed = [quote(cut(name), safe="", errors="backslashreplace") for name in names[:MAX_IGNORED_NAMES]]
    return ", ".join(listed) + (f", and {len(names) - len(listed)} more" if len(names) > len(listed) else "")
