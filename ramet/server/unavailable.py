"""unavailable(): a 503 in the form of a request's route, for requests that reach no route."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from ramet.errors import RametError
from ramet.server import routes
from ramet.server.bodies import Room, read_body
from ramet.server.errors import Unavailable
from ramet.server.rendering import render

_BODY_S = 10  # for a body that nobody reads


def unavailable(path: str, error: Unavailable) -> Response:
    """The response for a request to an address, in the form of its route's errors."""
    own = next((each.render for each in routes.ROUTES if path.startswith(each.path)), render)
    return own(error)


async def drop_body(scope: Scope, receive: Receive) -> None:
    """Read the body and drop it: a client that is still sending would not read the answer."""
    with suppress(RametError), Room(0).share() as take:
        await read_body(Request(scope, receive), take, max_bytes=0, timeout_s=_BODY_S)
