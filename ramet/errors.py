"""Every error that Ramet raises on purpose.

RametError
├── RequestError            the caller can mend it; `field` names where
│   ├── InvalidRequest      422  wrong shape or value
│   ├── UnknownModel        404  no model of that name is served
│   ├── RequestTooLong      413  more tokens than the model or the limits take
│   ├── NotSupported        501  the model that is served does not do this
│   └── Overloaded          429  the queue is full; `retry_after_s` says when to try again
├── Cancelled               499  the caller went away or closed the engine
├── CheckpointError         —    a model's files are missing, unknown or do not fit
└── EngineFault             503  the engine itself failed; /health turns bad
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class RametError(Exception):
    """Base of all of them."""


class RequestError(RametError):
    """A caller's mistake. `field` is a dotted path into the request, such as ``questions.topic.criteria``."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a request: where it is, in words, and as a code for machines."""

    loc: tuple[str | int, ...]
    message: str
    code: str


class InvalidRequest(RequestError):
    """A value is missing, of the wrong shape, or out of range. `problems` lists all that was found, where known."""

    def __init__(self, message: str, *, field: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, field=field)
        self.problems = tuple(problems)


class UnknownModel(RequestError):
    """The named model is not served here."""


class RequestTooLong(RequestError):
    """The request has more tokens than fit. Nothing is ever truncated instead."""


class NotSupported(RequestError):
    """The model that is served does not do this, whatever the request's values."""


class Overloaded(RequestError):
    """The bounded queue is full."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Cancelled(RametError):
    """The request was cancelled before its answer was ready."""


class CheckpointError(RametError):
    """A checkpoint cannot be loaded: the message names the file, the tensor or the key, and the remedy."""


class EngineFault(RametError):
    """The engine's own failure; no request caused it and none can mend it."""
