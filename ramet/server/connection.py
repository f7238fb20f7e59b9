"""HttpToolsConnection: HTTP/1.1 as uvicorn reads it with httptools, with a limit on all that is not a body."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ramet.server.crowd import N_SURPLUS, Crowd
from ramet.server.settings import ServerSettings
from ramet.server.timed_connection import TimedConnection

MAX_HEAD_BYTES = 64 << 10  # of an address with its headers, and of the trailers, as h11 has it
MAX_AHEAD = 128  # requests that may come before the answer to one is out; uvicorn keeps any number


class HttpToolsConnection(TimedConnection, HttpToolsProtocol):  # type: ignore[misc]
    """One client's connection. httptools accepts a head of any length; here a head beyond the limit gets a plain 400,
    and so does one more than MAX_AHEAD requests that come before their turn.

    httptools reads no body of a request that offers another protocol (Java's client offers HTTP/2). Such a connection
    goes to h11, which reads the body and ignores the offer.
    """

    _is_in_head = False
    _n_head = 0  # bytes of the head so far
    _n_silent = 0  # bytes since the parser's last call: it keeps a header's value until it has all of it
    _latest = b""  # what has come last

    def __init__(self, settings: ServerSettings, crowd: Crowd, **uvicorns: Any) -> None:
        super().__init__(settings, **uvicorns)
        self._crowd = crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        n_over = self._crowd.n_over(len(self.connections))
        self.is_surplus = n_over > 0
        if n_over > N_SURPLUS:
            self.cut()

    def data_received(self, data: bytes) -> None:
        self._latest = data
        self._n_silent += len(data)
        super().data_received(data)
        if self._n_silent > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_AHEAD:
            raise ValueError  # as for a head that is too long
        self._n_head = self._n_silent = 0
        self._is_in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # and ": " and the line's end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_silent = 0
        super().on_body(body)

    def has_begun(self) -> bool:
        return self._is_in_head

    def _should_upgrade(self) -> bool:
        return True

    def handle_websocket_upgrade(self) -> None:
        """httptools calls this where it stops, before the body. h11 gets the head once more, and what came behind
        it."""
        stopped = sys.exception()
        assert stopped is not None
        if self.cycle is not None and not self.cycle.response_complete:
            self.send_400_response(
                "A request that offers another protocol must not follow one that is not answered yet."
            )
            return
        method, version = (self.scope[name].encode("ascii") for name in ("method", "http_version"))
        lines = [b"%s %s HTTP/%s" % (method, self.url, version), *(b"%s: %s" % header for header in self.headers)]
        self.connections.discard(self)
        successor = H11Connection(
            self._settings, config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        successor.is_surplus = self.is_surplus
        successor.connection_made(self.transport)
        self.transport.set_protocol(successor)
        successor.data_received(b"\r\n".join([*lines, b"", b""]) + self._latest[stopped.args[0] :])

    def _count(self, n_bytes: int) -> None:
        self._n_silent = 0
        self._n_head += n_bytes
        if self._n_head > MAX_HEAD_BYTES:
            raise ValueError(_TOO_LONG)  # the parser makes it an error of its own, which is answered with 400


class H11Connection(TimedConnection, H11Protocol):  # type: ignore[misc]
    """A connection whose HTTP h11 reads."""

    def has_begun(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _should_upgrade(self) -> bool:
        return False


_TOO_LONG = f"The head has more than {MAX_HEAD_BYTES} bytes."
