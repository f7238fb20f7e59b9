"""Server: uvicorn's, which ends without raising its signal again, and with an answer to every request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator

import uvicorn

from ramet.server.connection import Connection
from ramet.server.presence import Work

KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, so that none is closed under a request
GRACE_S = 5  # for the last answers to go out, behind the time that requests get to finish
_LOG = logging.getLogger("ramet.server")


def uvicorn_config(app: object, drain_s: int) -> uvicorn.Config:
    """How uvicorn runs an application: nothing is logged but what goes wrong, the sockets are its caller's."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=Connection,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=drain_s + GRACE_S,
    )


class Server(uvicorn.Server):
    """`stop` ends it: nothing new is taken, what runs gets `drain_s` seconds, and what still runs then is answered
    with a 503, a stream with an event of that error."""

    def __init__(self, config: uvicorn.Config, work: Work, drain_s: int) -> None:
        super().__init__(config)
        self._work, self._drain_s = work, drain_s

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are `ramet.server.signals`' to handle: uvicorn would raise them again behind its loop, and what is
        to be done at the end of the process would not be."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _LOG.info("stopping; %d running requests get %d s to finish", len(self.server_state.tasks), self._drain_s)
        limit = asyncio.get_running_loop().call_later(self._drain_s, self._work.end)
        try:
            await super().shutdown(sockets)
        finally:
            limit.cancel()
