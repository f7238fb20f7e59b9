"""Requests as the command line reads them: by the server's own rules for JSON and for fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.errors import InvalidRequest
from ramet.request import DecisionRequest
from ramet.server.documents import parse_json


def read_object(text: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8. Raises a RequestError for anything else."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise InvalidRequest("a request is a JSON object, such as one with `state` and `questions`")
    return value


def read_text(file: Any, field: str) -> str:
    """A file's text, which must be UTF-8. Raises InvalidRequest naming the field that it is for."""
    try:
        return str(file.read(), "utf-8-sig")
    except UnicodeDecodeError as error:
        name = getattr(file, "name", "stdin")
        raise InvalidRequest(f"{name} is not UTF-8: {error.reason} at byte {error.start}", field=field) from error


def with_fields(data: Mapping[str, Any], fields: Mapping[str, Any]) -> DecisionRequest:
    """The request that `data` spells, with `fields` put over its own."""
    return DecisionRequest.parse({**data, **fields})
