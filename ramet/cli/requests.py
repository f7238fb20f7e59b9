"""Requests as the command line reads them: by the server's own rules for JSON and for fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.errors import InvalidRequest
from ramet.request import DecisionRequest
from ramet.server.documents import parse_json
from ramet.server.errors import BodyTooLarge

MAX_BYTES = 16 << 20  # of a request, as a server takes it (max_body_bytes)


def read_all(file: Any, field: str | None = None) -> bytes:
    """What a file holds, which may never end. Raises BodyTooLarge beyond MAX_BYTES, naming file and field."""
    data = bytes(file.read(MAX_BYTES + 1))
    if len(data) > MAX_BYTES:
        raise BodyTooLarge(f"{getattr(file, 'name', 'stdin')} has more than {MAX_BYTES} bytes", field=field)
    return data


def read_object(text: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8 of at most MAX_BYTES. Raises a RequestError for anything else."""
    if len(text) > MAX_BYTES:
        raise BodyTooLarge(f"a request has at most {MAX_BYTES} bytes, and this one has more")
    value = parse_json(text)
    if not isinstance(value, dict):
        raise InvalidRequest("a request is a JSON object, such as one with `state` and `questions`")
    return value


def read_text(file: Any, field: str) -> str:
    """A file's text, which must be UTF-8. Raises a RequestError naming the field that it is for."""
    try:
        return str(read_all(file, field), "utf-8-sig")
    except UnicodeDecodeError as error:
        name = getattr(file, "name", "stdin")
        raise InvalidRequest(f"{name} is not UTF-8: {error.reason} at byte {error.start}", field=field) from error


def with_fields(data: Mapping[str, Any], fields: Mapping[str, Any]) -> DecisionRequest:
    """The request that `data` spells, with `fields` put over its own."""
    return DecisionRequest.parse({**data, **fields})
