"""The server, assembled: routes, errors, and the loop that runs them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial

from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException

from ramet.errors import RametError
from ramet.server import routes
from ramet.server.access_log import AccessLog, log_to_stderr
from ramet.server.authentication import Authentication
from ramet.server.bodies import MAX_BODIES, Room
from ramet.server.crowd import Surplus
from ramet.server.exchange import Exchange
from ramet.server.head_as_get import HeadAsGet
from ramet.server.health import Health
from ramet.server.listener import Listener
from ramet.server.metrics import Metrics
from ramet.server.models import Models
from ramet.server.openapi import openapi_document
from ramet.server.parse_body import PARSERS
from ramet.server.rendering import render_http, render_raised
from ramet.server.running import Server
from ramet.server.running_requests import RunningRequests
from ramet.server.served import Served
from ramet.server.settings import ServerSettings
from ramet.server.signals import Signals
from ramet.turns import Turns
from ramet.version import __version__

_LOG = logging.getLogger("ramet.server")


def create_app(engine: Served, settings: ServerSettings | None = None) -> FastAPI:
    """The ASGI application for one engine. The caller closes the engine."""
    settings = settings or ServerSettings()
    models, metrics = Models(engine, settings), Metrics(engine)
    authentication = Authentication(settings.api_key)
    app = FastAPI(
        title="Ramet",
        version=__version__,
        description="Decisions: one state, many questions, one pass. And text, of models that write it.",
        redirect_slashes=False,
        routes=[made(engine, models, metrics, settings).route(authentication) for made in routes.ROUTES],
    )
    guard = [Depends(authentication.check)]
    app.include_router(models.router(), dependencies=guard)
    app.include_router(metrics.router(), dependencies=guard)
    app.include_router(Health(engine).router())
    app.add_exception_handler(RametError, render_raised)
    app.add_exception_handler(HTTPException, render_http)
    app.state.running = RunningRequests()
    app.state.parsers = Turns(PARSERS, "ramet-parse")
    app.state.room = Room(MAX_BODIES * settings.max_body_bytes)
    app.add_middleware(Surplus)
    app.add_middleware(Exchange, metrics=metrics)
    app.add_middleware(HeadAsGet)
    if settings.access_log:
        app.add_middleware(AccessLog)
    document = cache(partial(openapi_document, app, keyed=authentication.wants_key))
    app.openapi = document  # type: ignore[method-assign]
    return app


def server_for(engine: Served, settings: ServerSettings) -> Server:
    """The server of one engine, which runs on sockets that its caller opens: `server.run(sockets)`."""
    app = create_app(engine, settings)
    return Server(app, app.state.running, settings)


def serve(
    engine: Served,
    settings: ServerSettings | None = None,
    listener: Listener | None = None,
    signals: Signals | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, and return. Running requests get `drain_s` seconds to finish; those that still run
    then get a 503. A second signal ends the process at once.

    A caller that opened a `listener` and `signals` before it made the engine passes them on. Raises ListenError.
    """
    settings = settings or ServerSettings()
    with ExitStack() as stack:
        listener = listener or stack.enter_context(Listener.open(settings))
        signals = signals or stack.enter_context(Signals())
        server = server_for(engine, settings)
        stack.enter_context(signals.calling(server.stop))
        log_to_stderr()
        _LOG.info("%s answers at %s", engine.name, listener.url)
        with _frozen():
            server.run(list(listener.sockets))


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the garbage collector from all that is loaded: it stays, and walking through it would stop every request for
    0.2 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
