"""Strict JSON: what the standard allows and a model can be shown, and nothing that would be lost or changed."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ramet.errors import InvalidRequest, Problem
from ramet.request import MAX_NESTING
from ramet.server.errors import MalformedBody


def parse_json(body: bytes) -> Any:
    """The JSON value in `body`.

    Raises MalformedBody for what is not UTF-8, for NaN and Infinity, integers beyond Python's limit of
    digits and nesting beyond MAX_NESTING; InvalidRequest for a syntax error and for a name that an
    object has twice, one of whose values would be lost. A number beyond a double comes back as an
    infinity: the request's own check names its field.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        value = _DECODER.decode(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        problem = Problem((error.pos,), f"the body is not JSON: {error.msg} at character {error.pos}", "json_invalid")
        raise InvalidRequest(problem.message, problems=[problem]) from error
    except ValueError as error:
        raise MalformedBody(f"the body has an integer with too many digits: {error}") from error
    except RecursionError:
        raise MalformedBody(_TOO_DEEP) from None
    if body.count(b"[") + body.count(b"{") > MAX_NESTING:  # fewer cannot be nested deeper
        _check_nesting(value)
    return value


_TOO_DEEP = f"the body's objects and arrays are nested more than {MAX_NESTING} deep"


def _check_nesting(value: Any) -> None:
    """Level by level, so that depth costs no stack."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > MAX_NESTING:
            raise MalformedBody(_TOO_DEEP)
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        problem = Problem((), f"an object has the name {twice!r} twice", "json_duplicate_name")
        raise InvalidRequest(problem.message, problems=[problem])
    return value


def _constant(name: str) -> NoReturn:
    raise MalformedBody(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
