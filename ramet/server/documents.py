"""parse_json(): strict JSON. What would be lost or changed on its way to a model is an error."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np

from ramet.errors import InvalidRequest, Problem
from ramet.quoting import repeated
from ramet.server.errors import MalformedBody
from ramet.values import MAX_NESTING

MAX_VALUES = 3 << 17  # of all kinds in a body: more than the ids of the longest prompt, and some hundred MB of objects
MAX_DIGITS = 1000  # of a number: what they cost grows with their square


def parse_json(body: bytes) -> Any:
    """The JSON value in `body`. Values and nesting are counted before any value is made.

    Raises MalformedBody for what is not UTF-8, for NaN and Infinity, numbers of more than MAX_DIGITS digits,
    nesting beyond MAX_NESTING and more than MAX_VALUES values; InvalidRequest for a syntax error and for a name
    that an object has twice, one of whose values would be lost. A number beyond a double comes back as an
    infinity: the request's own check names its field.
    """
    _check_extent(body)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        return _DECODER.decode(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        problem = Problem((error.pos,), f"the body is not JSON: {error.msg} at character {error.pos}", "json_invalid")
        raise InvalidRequest(problem.message, problems=[problem]) from error


def _check_extent(body: bytes) -> None:
    """Raise MalformedBody for too many values, too deep nesting and too long numbers. Every value but the first follows
    a comma or a bracket.

    Backslashes stand in strings alone, so their pairs count from the left. Up to the first error this cuts the body
    into strings as the decoder does.
    """
    n_opened = body.count(b"[") + body.count(b"{")
    if n_opened + body.count(b",") <= MAX_NESTING and len(body) <= MAX_DIGITS:
        return  # in strings or not
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    if bare.count(b'"') > 4 * MAX_VALUES:  # a name and a value each
        raise MalformedBody(_TOO_MANY)
    outside = b"".join(bare.split(b'"')[::2]).translate(None, b" \t\r\n")
    n_empty = outside.count(b"[]") + outside.count(b"{}")
    if 1 + outside.count(b",") + outside.count(b"[") + outside.count(b"{") - n_empty > MAX_VALUES:
        raise MalformedBody(_TOO_MANY)
    if b"0" * (MAX_DIGITS + 1) in outside.translate(_DIGITS):
        raise MalformedBody(f"the body has a number with more than {MAX_DIGITS} digits in a row")
    if n_opened > MAX_NESTING:
        brackets = np.frombuffer(outside.translate(_STEPS, _NO_BRACKETS), np.int8)
        if len(brackets) and int(brackets.cumsum(dtype=np.int32).max()) > MAX_NESTING:
            raise MalformedBody(_TOO_DEEP)


_TOO_MANY = f"the body has more than {MAX_VALUES} values"
_TOO_DEEP = f"the body's objects and arrays are nested more than {MAX_NESTING} deep"
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # up and down, as int8
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        message = f"an object has the name {repeated(name for name, _ in pairs)} twice"
        problem = Problem((), message, "json_duplicate_name")
        raise InvalidRequest(problem.message, problems=[problem])
    return value


def _constant(name: str) -> NoReturn:
    raise MalformedBody(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
