"""Errors as OpenAI's clients expect them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from ramet.errors import (
    InvalidRequest,
    NotSupported,
    Problem,
    RametError,
    RequestError,
    RequestTooLong,
    UnknownModel,
)
from ramet.server.errors import MalformedBody, Unauthenticated, headers_of, printable, status_of


class OpenAIErrorDetail(BaseModel):
    """What went wrong, in words and as a code, and which parameter is to be mended, where it is one."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorBody(BaseModel):
    """Body of every error of these routes, and data of the event that ends a stream early."""

    error: OpenAIErrorDetail


STATUSES: Mapping[type[RametError], tuple[int, str | None]] = {  # where they differ from those of the other routes
    InvalidRequest: (400, None),  # the problem's own code
    RequestTooLong: (400, "context_length_exceeded"),
    UnknownModel: (404, "model_not_found"),
    Unauthenticated: (401, "invalid_api_key"),
    MalformedBody: (400, "malformed_body"),
}
MAX_SHOWN = 5  # problems in one message


def render(error: RametError, places: Mapping[str, str] | None = None) -> Response:
    """The response for an error; `places` maps the engine's fields to the request's."""
    status, body = described(error, places or {})
    content = json.dumps(body, ensure_ascii=False).encode()
    headers = headers_of(error) | ({"x-should-retry": "false"} if isinstance(error, NotSupported) else {})
    return Response(content, status, headers, media_type="application/json")


def described(error: RametError, places: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Status and body."""
    status, code = next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), status_of(error))
    message, param = str(error), _param(error, places)
    if isinstance(error, RequestError):
        problems = getattr(error, "problems", ()) or (Problem((), error.message, code or "invalid_value"),)
        code = problems[0].code
        message = "; ".join(_told(problem, param if error.field else None) for problem in problems[:MAX_SHOWN])
        message += f"; and {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else ""
    detail = OpenAIErrorDetail(message=printable(message), type=_type(status), param=param, code=code)
    return status, {"error": detail.model_dump()}


def _told(problem: Problem, param: str | None) -> str:
    place = _place(problem) or param
    return f"{place}: {problem.message}" if place else problem.message


def _place(problem: Problem) -> str | None:
    """The path of a field; none for a place in a body that is no JSON."""
    if not problem.loc or isinstance(problem.loc[0], int):
        return None
    return ".".join(map(str, problem.loc))


def _param(error: RametError, places: Mapping[str, str]) -> str | None:
    if isinstance(error, (UnknownModel, NotSupported)):
        return "model"
    if not isinstance(error, RequestError):
        return None
    field = error.field
    if isinstance(error, InvalidRequest) and error.problems:
        field = _place(error.problems[0])
    return None if field is None else printable(places.get(field, field))


def _type(status: int) -> str:
    """OpenAI's classes of errors."""
    if status == 429:
        return "rate_limit_error"
    if status == 401:
        return "authentication_error"
    return "invalid_request_error" if status < 500 else "server_error"
