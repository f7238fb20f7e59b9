"""Errors to HTTP: the one table of statuses and codes, and the headers that go with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ramet.errors import (
    Cancelled,
    EngineFault,
    InvalidRequest,
    NotSupported,
    Overloaded,
    RametError,
    RequestError,
    RequestTooLong,
    UnknownModel,
)
from ramet.quoting import cut

MAX_MESSAGE = 2000  # letters


class Unauthenticated(RequestError):
    """The key is wrong or missing."""


class NoSuchAddress(RequestError):
    """No route has the address. Its code differs from that of a wrong model's name, which is a 404 too."""


class WrongMethod(RequestError):
    """The route has other methods, which `allow` lists."""

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow


class MalformedBody(RequestError):
    """The body cannot be read: broken compression, not UTF-8, or beyond what JSON may hold here."""


class BodyTimeout(RequestError):
    """The body did not arrive in time."""


class BodyTooLarge(RequestError):
    """The body has more bytes than the server takes."""


class UnsupportedBody(RequestError):
    """An encoding or a media type that the server does not read."""


class Unavailable(RametError):
    """The server still loads its model, or stops. The same request may succeed later, or elsewhere."""


class Status(NamedTuple):
    """The response for a class of errors. `status` and `error_type` are System One's. OpenAI's clients read `code`;
    where it is None they get the `error_type`. Routes for text answer with `text_status` where it is not None."""

    status: int
    error_type: str
    code: str | None = None
    text_status: int | None = None


STATUSES: Mapping[type[RametError], Status] = {
    MalformedBody: Status(400, "malformed_body"),
    Unauthenticated: Status(401, "authentication_error", "invalid_api_key"),
    UnknownModel: Status(404, "unknown_model", "model_not_found"),
    NoSuchAddress: Status(404, "no_such_address"),
    WrongMethod: Status(405, "method_not_allowed"),
    BodyTimeout: Status(408, "body_timeout"),
    RequestTooLong: Status(413, "max_tokens_exceeded", "context_length_exceeded", 400),
    BodyTooLarge: Status(413, "body_too_large"),
    UnsupportedBody: Status(415, "unsupported_body"),
    InvalidRequest: Status(422, "invalid_request", "invalid_value", 400),  # or its first problem's own code
    Overloaded: Status(429, "overloaded"),
    Cancelled: Status(499, "cancelled"),
    RametError: Status(500, "internal_error"),
    NotSupported: Status(501, "not_supported"),
    EngineFault: Status(503, "engine_fault"),
    Unavailable: Status(503, "unavailable"),
}


def status_of(error: RametError) -> Status:
    """The row of the nearest class in the table."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def printable(text: str) -> str:
    """The text as UTF-8 can encode it and a person can read it: half a surrogate pair is escaped, a very long text
    cut."""
    return cut(text, MAX_MESSAGE).encode("utf-8", "backslashreplace").decode()


def headers_of(error: RametError) -> dict[str, str]:
    """The headers that a response to the error needs."""
    if isinstance(error, Overloaded):
        ms = math.ceil(max(0.0, error.retry_after_s) * 1000)
        return {"retry-after": str(max(1, math.ceil(ms / 1000))), "retry-after-ms": str(ms)}
    if isinstance(error, Unavailable):
        return {"retry-after": "1", "retry-after-ms": "1000"}
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, WrongMethod):
        return {"allow": error.allow}
    if isinstance(error, UnsupportedBody):
        return {"accept-encoding": "zstd, gzip"}
    if isinstance(error, NotSupported):
        return {"x-should-retry": "false"}  # OpenAI's clients try a 501 again else
    return {}
