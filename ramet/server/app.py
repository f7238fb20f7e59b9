"""The server, assembled: routes, errors, and the loop that runs them."""

from __future__ import annotations

import gc
from functools import partial

import uvicorn
from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException

from ramet.errors import RametError
from ramet.server.authentication import Authentication
from ramet.server.connection import Connection
from ramet.server.errors import render_http, render_raised
from ramet.server.exchange import Exchange
from ramet.server.health import Health
from ramet.server.metrics import Metrics
from ramet.server.models import Models
from ramet.server.openai.chat import Chat
from ramet.server.openai.completions import Completions
from ramet.server.openapi import openapi_document
from ramet.server.served import Served
from ramet.server.settings import ServerSettings
from ramet.server.systemone import SystemOne
from ramet.version import __version__

KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, so that none is closed under a request


def create_app(engine: Served, settings: ServerSettings | None = None) -> FastAPI:
    """The ASGI application for one engine, which stays the caller's to close."""
    settings = settings or ServerSettings()
    models, metrics = Models(engine, settings), Metrics(engine)
    authentication = Authentication(settings.api_key)
    app = FastAPI(
        title="Ramet",
        version=__version__,
        description="Decisions: one state, many questions, one pass. And text, of models that write it.",
        routes=[
            made(engine, models, metrics, settings).route(authentication) for made in (SystemOne, Chat, Completions)
        ],
    )
    guard = [Depends(authentication.check)]
    app.include_router(models.router(), dependencies=guard)
    app.include_router(metrics.router(), dependencies=guard)
    app.include_router(Health(engine).router())
    app.add_exception_handler(RametError, render_raised)
    app.add_exception_handler(HTTPException, render_http)
    app.add_middleware(Exchange, metrics=metrics)
    app.openapi = partial(openapi_document, app)  # type: ignore[method-assign]
    return app


def server_config(engine: Served, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn is to run the application."""
    return uvicorn.Config(
        create_app(engine, settings),
        host=settings.host,
        port=settings.port,
        http=Connection,
        access_log=settings.access_log,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.drain_s,
    )


def serve(engine: Served, settings: ServerSettings | None = None) -> None:
    """Serve until SIGINT or SIGTERM; running requests then get `drain_s` seconds to finish."""
    server = uvicorn.Server(server_config(engine, settings or ServerSettings()))
    gc.collect()
    gc.freeze()  # what is loaded stays, and a collection that walked it all would stop every request for 0.2 s
    try:
        server.run()
    finally:
        gc.unfreeze()
