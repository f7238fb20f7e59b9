"""What is asked in a body: read, decompressed and parsed, with the event loop free for others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.server.bodies import Room, Take, decompress, encoding_of, read_body
from ramet.server.documents import parse_json
from ramet.server.errors import BodyTooLarge, UnsupportedBody
from ramet.server.presence import unless_gone
from ramet.server.settings import ServerSettings
from ramet.turns import LARGE, HasGone, Turns

SMALL_BODY_BYTES = 16 << 10  # a larger one, or a compressed one, waits for its turn
PARSERS = 2  # threads: more would hold up the event loop, for one of them runs at a time

T = TypeVar("T")


async def asked(
    request: Request, settings: ServerSettings, parse: Callable[[Any], T], *, at_once: int = SMALL_BODY_BYTES
) -> T:
    """What `parse` makes of the body's JSON value, in its turn, or at once where the body is plain and has few bytes.
    While it waits it is kept as it was sent, and decompressed when its turn has come. Raises a RequestError for a body
    that is none, Unavailable where other bodies leave no room for it, Cancelled when the client goes away."""
    room: Room = request.app.state.room
    with room.share() as take:
        return await _asked(request, settings, parse, take, at_once)


async def _asked(request: Request, settings: ServerSettings, parse: Callable[[Any], T], take: Take, at_once: int) -> T:
    encoding = encoding_of(request.headers.get("content-encoding"))
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise UnsupportedBody("multipart bodies carry images, which this model does not take; send JSON")
    limit = settings.max_body_bytes
    body = await read_body(request, take, max_bytes=limit, timeout_s=settings.body_timeout_s)
    if encoding is None and len(body) <= at_once:
        return parse(parse_json(body))
    turns: Turns = request.app.state.parsers
    who = _who(request, settings)

    async def in_turn(most: int, size: int) -> T:
        def work(_: HasGone) -> T:
            return parse(parse_json(body if encoding is None else decompress(body, encoding, max_bytes=most)))

        return await unless_gone(request, turns.run(work, size=size, who=who))

    if encoding is None:
        return await in_turn(limit, len(body))
    with suppress(BodyTooLarge):  # what is small when decompressed, too, waits for nothing that is large
        return await in_turn(min(limit, LARGE - 1), len(body))
    return await in_turn(limit, limit)


def _who(request: Request, settings: ServerSettings) -> str:
    """Whose turn it is: the key's, where clients have keys, for behind a proxy all of them have one address. Where they
    have none, any of them may send any header."""
    if settings.api_key:
        return request.headers.get("authorization", "").partition(" ")[2].strip()
    return request.client.host if request.client else ""
