"""Errors to HTTP: the one table of statuses, and the bodies that go with them.

Two shapes, as System One's clients expect: 422 has a list, ``{"detail": [{"loc", "msg", "type"}]}``;
every other status has ``{"detail": {"error_type", "message"}}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import (
    Cancelled,
    EngineFault,
    InvalidRequest,
    NotSupported,
    Overloaded,
    Problem,
    RametError,
    RequestError,
    RequestTooLong,
    UnknownModel,
)


class Unauthenticated(RequestError):
    """The key is wrong or missing."""


class MalformedBody(RequestError):
    """The body cannot be read: broken compression, not UTF-8, or beyond what JSON may hold here."""


class BodyTimeout(RequestError):
    """The body did not arrive in time."""


class BodyTooLarge(RequestError):
    """The body has more bytes than the server takes."""


class UnsupportedBody(RequestError):
    """An encoding or a media type that the server does not read."""


class Unavailable(RametError):
    """The server loads its model still, or stops: the same request may be answered later, or elsewhere."""


STATUSES: Mapping[type[RametError], tuple[int, str]] = {
    MalformedBody: (400, "malformed_body"),
    Unauthenticated: (401, "authentication_error"),
    UnknownModel: (404, "unknown_model"),
    BodyTimeout: (408, "body_timeout"),
    RequestTooLong: (413, "max_tokens_exceeded"),
    BodyTooLarge: (413, "body_too_large"),
    UnsupportedBody: (415, "unsupported_body"),
    InvalidRequest: (422, "invalid_request"),
    Overloaded: (429, "overloaded"),
    Cancelled: (499, "cancelled"),
    NotSupported: (501, "not_supported"),
    RametError: (500, "internal_error"),
    EngineFault: (503, "engine_fault"),
    Unavailable: (503, "unavailable"),
}
NOT_FOUND = "no_such_address"  # differs from unknown_model: a client can tell a wrong address from a wrong name


class ErrorDetail(BaseModel):
    """What went wrong, as a code for machines and in words."""

    error_type: str
    message: str


class ErrorBody(BaseModel):
    """Body of every error but 422."""

    detail: ErrorDetail


class InvalidField(BaseModel):
    """One problem: the path to the value, in words, and as a code."""

    loc: list[str | int]
    msg: str
    type: str


class InvalidBody(BaseModel):
    """Body of 422: everything that is wrong with the request."""

    detail: list[InvalidField]


def status_of(error: RametError) -> tuple[int, str]:
    """HTTP status and error_type of an error: those of the nearest class in the table."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def printable(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_response(status: int, error_type: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the general shape."""
    return _json(status, {"error_type": error_type, "message": printable(message)}, headers)


def render(error: RametError, question_names: tuple[str, ...] = ()) -> Response:
    """The response for an error; `question_names` tell a dot in a name from a step of a path."""
    status, error_type = status_of(error)
    if isinstance(error, InvalidRequest):
        problems = error.problems or (Problem(_loc(error.field, question_names), error.message, error_type),)
        return _json(status, [_invalid_field(problem) for problem in problems], None)
    return error_response(status, error_type, str(error), headers=headers_of(error))


async def render_raised(_request: Request, error: Exception) -> Response:
    """Handler of errors of Ramet's tree."""
    assert isinstance(error, RametError)
    return render(error)


async def render_http(request: Request, error: Exception) -> Response:
    """Handler of the router's own errors: an unknown address, a wrong method."""
    assert isinstance(error, HTTPException)
    error_type = NOT_FOUND if error.status_code == 404 else "http_error"
    message = f"{error.detail}: {request.method} {request.url.path}"
    return error_response(error.status_code, error_type, message, headers=error.headers)


def headers_of(error: RametError) -> dict[str, str]:
    if isinstance(error, Overloaded):
        wait = max(0.0, error.retry_after_s)
        return {"retry-after": str(max(1, math.ceil(wait))), "retry-after-ms": str(math.ceil(wait * 1000))}
    if isinstance(error, Unavailable):
        return {"retry-after": "1"}
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, UnsupportedBody):
        return {"accept-encoding": "zstd, gzip"}
    return {}


def _loc(field: str | None, question_names: tuple[str, ...]) -> tuple[str | int, ...]:
    """The path of a dotted field. A question's name may itself have dots: the longest that fits is meant."""
    if not field:
        return ()
    head, _, rest = field.partition(".")
    if head != "questions" or not rest:
        return tuple(field.split("."))
    fitting = [name for name in question_names if rest == name or rest.startswith(name + ".")]
    if not fitting:
        return (head, *rest.split("."))
    name = max(fitting, key=len)
    return (head, name, *(rest[len(name) + 1 :].split(".") if len(rest) > len(name) else ()))


def _invalid_field(problem: Problem) -> dict[str, Any]:
    loc = [printable(item) if isinstance(item, str) else item for item in problem.loc]
    return {"loc": ["body", *loc], "msg": printable(problem.message), "type": problem.code}


def _json(status: int, detail: Any, headers: Mapping[str, str] | None) -> Response:
    content = json.dumps({"detail": detail}, ensure_ascii=False).encode()
    return Response(content, status, headers, media_type="application/json")
