"""LiveServer: the real server on a free port of this machine, in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from waiting import GUARD_S

from ramet.server.app import server_for
from ramet.server.listener import Listener
from ramet.server.running import Server
from ramet.server.served import Served
from ramet.server.settings import ServerSettings


@dataclass(frozen=True)
class LiveServer:
    """A running server: its address, what it serves, and what stops it."""

    url: str
    port: int
    engine: Served
    server: Server


@contextlib.contextmanager
def live_server(engine: Served, settings: ServerSettings | None = None, loop: str = "auto") -> Iterator[LiveServer]:
    """Serve `engine` until the block ends; then the server stops and its thread is joined. `loop` is uvicorn's."""
    settings = settings or ServerSettings()
    settings = settings.model_copy(update={"host": "127.0.0.1", "port": 0, "drain_s": min(5, settings.drain_s)})
    server = server_for(engine, settings)
    server.config.loop = loop
    with Listener.open(settings) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": list(listener.sockets)})
        thread.start()
        try:
            yield LiveServer(listener.url, listener.port, engine, server)
        finally:
            server.stop()
            thread.join(GUARD_S)
    assert not thread.is_alive(), "the server did not stop"
