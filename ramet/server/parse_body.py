"""parse_body(): reads, decompresses and parses a request's body, with the event loop free for other requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.server.bodies import Room, Take, decompress, encoding_of, read_body
from ramet.server.cancel_on_disconnect import cancel_on_disconnect
from ramet.server.documents import parse_json
from ramet.server.errors import BodyTooLarge, UnsupportedBody
from ramet.server.settings import ServerSettings
from ramet.turns import LARGE, HasGone, Turns

SMALL_BODY_BYTES = 16 << 10  # a larger one, or a compressed one, waits for its turn
PARSERS = 2  # threads: more would hold up the event loop, for one of them runs at a time

T = TypeVar("T")


async def parse_body(
    request: Request, settings: ServerSettings, parse: Callable[[Any], T], *, at_once: int = SMALL_BODY_BYTES
) -> T:
    """Parse the body's JSON value with `parse`: at once where the body is not compressed and has at most `at_once`
    bytes, else in a thread, when its turn has come. Until then the body is kept as it was sent.

    Raises a RequestError for a body that is none, Unavailable where other bodies leave no room for it, and Cancelled
    when the client disconnects.
    """
    room: Room = request.app.state.room
    with room.share() as take:
        return await _parse_within(take, request, settings, parse, at_once)


async def _parse_within(
    take: Take, request: Request, settings: ServerSettings, parse: Callable[[Any], T], at_once: int
) -> T:
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

        return await cancel_on_disconnect(request, turns.run(work, size=size, who=who))

    if encoding is None:
        return await in_turn(limit, len(body))
    with suppress(BodyTooLarge):  # a body that is small when decompressed, too, waits for no large one
        return await in_turn(min(limit, LARGE - 1), len(body))
    return await in_turn(limit, limit)


def _who(request: Request, settings: ServerSettings) -> str:
    """Whose turn a request takes: its key's, where the server has keys, since behind a proxy all clients have one
    address; else its address', since any client can send any header."""
    if settings.api_key:
        return request.headers.get("authorization", "").partition(" ")[2].strip()
    return request.client.host if request.client else ""
