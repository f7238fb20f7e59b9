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
    """The base of all errors that Ramet raises on purpose."""


class RequestError(RametError):
    """A caller's mistake, found before any work. `message` says what is wrong, `field` where: a dotted path into the
    request, such as ``questions.topic.criteria``, or None. `str()` gives both."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a request: its place (names and numbers from the outside in), its message, and a code for
    machines."""

    loc: tuple[str | int, ...]
    message: str
    code: str


class InvalidRequest(RequestError):
    """A value is missing, of the wrong shape, or out of range, in a request or among settings. `problems` lists all
    that was found, where there may be several."""

    def __init__(self, message: str, *, field: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, field=field)
        self.problems = tuple(problems)


class UnknownModel(RequestError):
    """The named model is not served here: raised by the server alone, since an engine has one model."""


class RequestTooLong(RequestError):
    """The request has more tokens than the model, the pages or a limit take. Nothing is ever truncated instead."""


class NotSupported(RequestError):
    """The model does not do this, whatever the request's values: text of an engine that decides alone."""


class Overloaded(RequestError):
    """The bounded queue (`max_queue`) is full; `retry_after_s` says in how many seconds to try again."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Cancelled(RametError):
    """The engine was closed before the answer was ready, or before the request came. Who cancels a future or a task
    gets its CancelledError."""


class CheckpointError(RametError):
    """A checkpoint cannot be loaded: the message names the file, the tensor or the key, and the remedy. Raised by
    `Engine.load`. It is one line, whatever it quotes: of texts that strangers wrote nothing moves a terminal's cursor.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in message))


class EngineFault(RametError):
    """The engine's own failure: a round failed, memory is lacking, or the device is lost. No request is wrong. After
    three rounds in a row the engine keeps it as its `fault` and takes no more."""
