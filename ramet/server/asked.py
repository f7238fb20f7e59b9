"""What is asked in a body: read, decompressed and parsed, with the event loop free for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.server.bodies import decompress, encoding_of, read_body
from ramet.server.documents import parse_json
from ramet.server.errors import UnsupportedBody
from ramet.server.settings import ServerSettings

SMALL_BODY_BYTES = 16 << 10  # a larger one, or a compressed one, is parsed in a thread

T = TypeVar("T")


async def asked(request: Request, settings: ServerSettings, parse: Callable[[Any], T]) -> T:
    """What `parse` makes of the body's JSON value. Raises a RequestError for a body that is none."""
    encoding = encoding_of(request.headers.get("content-encoding"))
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise UnsupportedBody("multipart bodies carry images, which this model does not take; send JSON")
    limit = settings.max_body_bytes
    body = await read_body(request, max_bytes=limit, timeout_s=settings.body_timeout_s)

    def parsed() -> T:
        return parse(parse_json(body if encoding is None else decompress(body, encoding, max_bytes=limit)))

    if encoding is None and len(body) <= SMALL_BODY_BYTES:
        return parsed()
    return await asyncio.to_thread(parsed)
