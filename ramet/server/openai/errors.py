"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from ramet.errors import InvalidRequest, NotSupported, Problem, RametError, RequestError, UnknownModel
from ramet.server.errors import headers_of, printable, status_of


class OpenAIErrorDetail(BaseModel):
    """What went wrong, in words and as a code, and the parameter to correct, if it is one."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIErrorBody(BaseModel):
    """Body of every error of the routes for text, and data of the event that ends a stream early."""

    error: OpenAIErrorDetail


MAX_SHOWN = 5  # problems in one message
NO_PLACES: Mapping[str, str] = {}


def render(error: RametError, places: Mapping[str, str] = NO_PLACES) -> Response:
    """The response of a route for text; `places` maps the engine's fields to the request's."""
    row = status_of(error)
    content = json.dumps({"error": error_object(error, places)}, ensure_ascii=False).encode()
    return Response(content, row.text_status or row.status, headers_of(error), media_type="application/json")


def error_object(error: RametError, places: Mapping[str, str] = NO_PLACES) -> dict[str, Any]:
    """What `error` holds, whatever the route."""
    row = status_of(error)
    message, param, code = str(error), _param(error, places), row.code or row.error_type
    if isinstance(error, RequestError):
        problems = getattr(error, "problems", ()) or (Problem((), error.message, code),)
        code = problems[0].code
        message = "; ".join(_worded(problem, param if error.field else None) for problem in problems[:MAX_SHOWN])
        message += f"; and {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else ""
    detail = OpenAIErrorDetail(message=printable(message), type=_type(row.status), param=param, code=code)
    return detail.model_dump()


def _worded(problem: Problem, param: str | None) -> str:
    place = _place(problem) or param
    return f"{place}: {problem.message}" if place else problem.message


def _place(problem: Problem) -> str | None:
    """The path of a field; None for a place in a body that is not JSON."""
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
    return "invalid_request_error" if status < 499 else "server_error"
