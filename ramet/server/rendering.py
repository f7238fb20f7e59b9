"""Rendering: the bodies of errors, on all routes but those for text.

`detail` is what System One's clients read: a list of problems in a 422, ``{"error_type", "message"}`` in
every other error. `error` beside it is what OpenAI's clients read.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import InvalidRequest, Problem, RametError
from ramet.server.errors import NoSuchAddress, WrongMethod, headers_of, printable, status_of
from ramet.server.openai.errors import OpenAIErrorDetail, error_object

METHODS_OF_ALL = "OPTIONS"  # answered on every route; and HEAD where there is GET
ELSEWHERE = {"/v1/decisions": "/v1/systemone", "/decisions": "/v1/systemone"}  # routes that clients know by other names


class ErrorDetail(BaseModel):
    """What went wrong, as a code for machines and in words."""

    error_type: str
    message: str


class ErrorBody(BaseModel):
    """Body of every error but 422."""

    detail: ErrorDetail
    error: OpenAIErrorDetail


class InvalidField(BaseModel):
    """One problem: the path to the value, in words, and as a code."""

    loc: list[str | int]
    msg: str
    type: str


class InvalidBody(BaseModel):
    """Body of 422: everything that is wrong with the request."""

    detail: list[InvalidField]
    error: OpenAIErrorDetail


def render(error: RametError, question_names: tuple[str, ...] = ()) -> Response:
    """The response for an error. `question_names` distinguish a dot in a name from a step of a path."""
    row = status_of(error)
    detail: Any = {"error_type": row.error_type, "message": printable(str(error))}
    if isinstance(error, InvalidRequest):
        problems = error.problems or (Problem(_loc(error.field, question_names), error.message, row.error_type),)
        detail = [_invalid_field(problem) for problem in problems]
    content = json.dumps({"detail": detail, "error": error_object(error)}, ensure_ascii=False).encode()
    return Response(content, row.status, headers_of(error), media_type="application/json")


async def render_raised(_request: Request, error: Exception) -> Response:
    """Handler of errors of Ramet's tree."""
    assert isinstance(error, RametError)
    return render(error)


async def render_http(request: Request, error: Exception) -> Response:
    """Handler of the router's own errors: an unknown address, or a wrong method. OPTIONS gets an answer, not an
    error."""
    assert isinstance(error, HTTPException)
    called = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        methods = {name.strip() for name in (error.headers or {})["Allow"].split(",")}
        allow = ", ".join(sorted(methods | {METHODS_OF_ALL} | ({"HEAD"} if "GET" in methods else set())))
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": allow})
        return render(WrongMethod(f"Method Not Allowed: {called}; the address takes {allow}", allow=allow))
    assert error.status_code == 404
    return render(NoSuchAddress(f"Not Found: {called}{_meant(request.url.path, request.app.openapi()['paths'])}"))


def _meant(path: str, paths: Iterable[str]) -> str:
    """Which address the client may have meant, if one is like it."""
    near = difflib.get_close_matches(path, paths, n=1, cutoff=0.75)
    meant = ELSEWHERE.get(path) or (near[0] if near else None)
    return f"; did you mean {meant}?" if meant else ""


def _loc(field: str | None, question_names: tuple[str, ...]) -> tuple[str | int, ...]:
    """The path of a dotted field. A question's name may itself have dots: the longest name that fits counts."""
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
