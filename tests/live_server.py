"""LiveServer: the real server on a free port of this machine, in a thread of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from ramet.server.app import server_config
from ramet.server.served import Served
from ramet.server.settings import ServerSettings

START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class LiveServer:
    """A running server: its address and what it serves."""

    url: str
    port: int
    engine: Served


class _Announcing(uvicorn.Server):
    """Says when it has started, so that no test sleeps and hopes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def _listener() -> socket.socket:
    """A socket on a free port. Its protocol is named, for only then does asyncio turn Nagle's delays off."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    return listener


@contextlib.contextmanager
def live_server(engine: Served, settings: ServerSettings | None = None) -> Iterator[LiveServer]:
    """Serve `engine` until the block ends; then the server stops and its thread is joined."""
    settings = (settings or ServerSettings()).model_copy(update={"access_log": False, "drain_s": 5})
    listener = _listener()
    server = _Announcing(server_config(engine, settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert server.is_up.wait(START_TIMEOUT_S), "the server did not start"
        port = listener.getsockname()[1]
        yield LiveServer(f"http://127.0.0.1:{port}", port, engine)
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT_S)
        listener.close()
    assert not thread.is_alive(), "the server did not stop"
