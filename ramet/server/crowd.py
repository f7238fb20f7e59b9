"""Crowd: how many connections a server holds at most."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from ramet.server.errors import Unavailable
from ramet.server.health import PATHS
from ramet.server.settings import ServerSettings
from ramet.server.unavailable import drop_body, unavailable

N_SURPLUS = 32  # connections beyond the limit at once: each gets a 503, and is closed
RESERVED_FILES = 64 + N_SURPLUS  # that the process may open later, for the disk cache and its libraries
MAX_CONNECTIONS = 1 << 16  # where the system sets no limit
_LOG = logging.getLogger("ramet.server")
_FULL = Unavailable("the server holds as many connections as it may (max_connections); ask again")


class Crowd:
    """The limit of connections. The log gets one line each time that the limit is reached."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._is_met = False

    @classmethod
    def of(cls, settings: ServerSettings) -> Crowd:
        """The limit that the settings give, but no more connections than the process may still open files for."""
        most, given = _openable(), settings.max_connections
        if given is not None and given > most:
            _LOG.warning("max_connections is %d here, not %d: `ulimit -n` allows no more", most, given)
        return cls(min(given or most, most))

    def n_over(self, n_connections: int) -> int:
        """How many of `n_connections`, the newest included, are beyond the limit."""
        n_over = max(0, n_connections - self.limit)
        if n_over and not self._is_met:
            self._is_met = True
            _LOG.warning("%d connections are open, the limit (max_connections): further ones get a 503", self.limit)
        return n_over

    def look(self, n_connections: int) -> None:
        """Note whether the limit is still reached. The server calls this about twice a second."""
        self._is_met &= n_connections >= self.limit


class Surplus:
    """ASGI middleware: a connection beyond the limit is answered with a 503, but for probes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get("connection")
        if connection is None or not connection.is_surplus or scope["path"] in PATHS:
            await self._app(scope, receive, send)
            return
        await drop_body(scope, receive)
        await unavailable(scope["path"], _FULL)(scope, receive, send)


def _openable() -> int:
    """Files that the process may open beyond those that it has open and those that are reserved."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft
    n_open = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(1, min(most - n_open - RESERVED_FILES, MAX_CONNECTIONS))
