"""Server: uvicorn's server, which here ends without raising its signal again, and with an answer to every request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Generator
from functools import partial
from typing import Any

import uvicorn

from ramet.server.connection import HttpToolsConnection
from ramet.server.crowd import Crowd
from ramet.server.running_requests import RunningRequests
from ramet.server.settings import ServerSettings
from ramet.server.timed_connection import KEEP_ALIVE_S, TimedConnection

LOOK_S = 0.5  # between two looks at all connections
N_AT_ONCE = 256  # connections that are looked at before others get their turn
GRACE_S = 5  # for the last answers to go out, behind the time that requests get to finish
_LOG = logging.getLogger("ramet.server")


class Server(uvicorn.Server):
    """`stop` ends it: the server takes no new request, and running ones get `drain_s` seconds. Those that still run
    then get a 503, and streams an event with that error. The server cuts off what a client has not taken GRACE_S
    later."""

    def __init__(self, app: object, running: RunningRequests, settings: ServerSettings) -> None:
        self._running, self._drain_s = running, settings.drain_s
        self._crowd = Crowd.of(settings)
        super().__init__(_config(app, settings, self._crowd))

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: `ramet.server.signals` handles them. uvicorn would raise them again behind its loop, and the end
        of the process would lose its clean-up."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_shortly)
        looking = asyncio.create_task(self._look())
        try:
            await super().serve(sockets)
        finally:
            looking.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _LOG.info("stopping; %d running requests get %d s to finish", len(self.server_state.tasks), self._drain_s)
        loop = asyncio.get_running_loop()
        limits = [
            loop.call_later(self._drain_s, self._running.end),
            loop.call_later(self._drain_s + GRACE_S, self._cut),
        ]
        try:
            await super().shutdown(sockets)
        finally:
            for limit in limits:
                limit.cancel()

    async def _look(self) -> None:
        loop, connections = asyncio.get_running_loop(), self.server_state.connections
        while True:
            await asyncio.sleep(LOOK_S)
            self._crowd.look(len(connections))
            for n, connection in enumerate(list(connections), 1):
                assert isinstance(connection, TimedConnection)
                connection.look(loop.time())
                if n % N_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            assert isinstance(connection, TimedConnection)
            connection.cut()


def _config(app: object, settings: ServerSettings, crowd: Crowd) -> uvicorn.Config:
    """How uvicorn runs an application: it logs failures alone, and its caller owns the sockets."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=partial(HttpToolsConnection, settings, crowd),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.drain_s + 2 * GRACE_S,
    )


def _log_shortly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log no trace of files that cannot be opened: asyncio tries again each second, and there would be many."""
    error = context.get("exception")
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        loop.default_exception_handler(context)
