"""What is asked in a body: read, decompressed and parsed, with the event loop free for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.server.bodies import decompress, encoding_of, read_body
from ramet.server.documents import parse_json
from ramet.server.errors import UnsupportedBody
from ramet.server.settings import ServerSettings
from ramet.turns import Turns

SMALL_BODY_BYTES = 16 << 10  # a larger one, or a compressed one, waits for its turn
PARSERS = 2  # threads: more would hold up the event loop, for one of them runs at a time

T = TypeVar("T")


async def asked(
    request: Request, settings: ServerSettings, parse: Callable[[Any], T], *, at_once: int = SMALL_BODY_BYTES
) -> T:
    """What `parse` makes of the body's JSON value, in its turn, or at once where the body is plain and has few bytes.
    Raises a RequestError for a body that is none."""
    encoding = encoding_of(request.headers.get("content-encoding"))
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise UnsupportedBody("multipart bodies carry images, which this model does not take; send JSON")
    limit = settings.max_body_bytes
    body = await read_body(request, max_bytes=limit, timeout_s=settings.body_timeout_s)
    if encoding is None and len(body) <= at_once:
        return parse(parse_json(body))
    turns: Turns = request.app.state.parsers
    plain = body
    if encoding is not None:
        plain = await turns.run(
            lambda _: decompress(body, encoding, max_bytes=limit), size=len(body), who=_who(request)
        )
    return await turns.run(lambda _: parse(parse_json(plain)), size=len(plain), who=_who(request))


def _who(request: Request) -> str:
    """Whose turn it is: the key's, where clients have keys, for behind a proxy all of them have one address."""
    return request.headers.get("authorization") or (request.client.host if request.client else "")
