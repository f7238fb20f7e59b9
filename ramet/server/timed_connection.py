"""TimedConnection: how long a connection waits for its client, whichever parser reads it."""

from __future__ import annotations

import asyncio
import fcntl
import math
import socket
import sys
import termios
from abc import abstractmethod
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from ramet.server.settings import ServerSettings

KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, so that none is closed under a request
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"  # which means nothing to a client that has sent its body
FIRST_PROBE_S = 0.05  # behind the end of what a client sends; each next one after twice the time
_LATE = "The head did not arrive in time."
_TIMEOUT = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s" % (len(_LATE), _LATE.encode())
)


class TimedConnection(asyncio.Protocol):
    """What our connections have in common, whichever of uvicorn's two protocols for HTTP/1.1 they extend.

    The server calls `look` about twice a second, so that requests set no timers. Three things are waited for: a head
    (`head_timeout_s`; the first from the moment that the connection is made, others from their first byte), a next
    request (KEEP_ALIVE_S), and that a client takes what was written (`send_timeout_s` without any progress).

    A client that has sent a whole request and ends its sending may wait for its answer, or be gone. Both look alike
    until the server sends something. So the server answers, and while the client waits, interim answers, which HTTP/1.1
    allows, show whether it is there. A connection beyond the limit is closed after its answer, too.
    """

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    app_state: dict[str, Any]
    cycle: Any  # the newest request with its answer, None before the first
    pipeline: Any = ()  # requests that wait for the answer to the one before

    is_surplus = False  # beyond the limit of connections
    _awaited: object = None  # what the connection waited for when the server looked last
    _since = 0.0  # since when it has waited for that, in the loop's seconds
    _has_ended = False  # the client has ended its sending
    _is_cut = False

    def __init__(self, settings: ServerSettings, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._settings = settings
        self.app_state = {**self.app_state, "connection": self}

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_surplus and self.cycle is not None:
            self.cycle.keep_alive = False

    def eof_received(self) -> bool:
        """Whether the connection stays open for the answer to a request that is whole."""
        if not self._is_busy or self.cycle.more_body:
            return False
        if not self._has_ended:
            self._has_ended = True
            self.loop.call_later(FIRST_PROBE_S, self._probe, FIRST_PROBE_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_cut |= exc is not None
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if not self._is_busy and (self.is_surplus or self._has_ended):
            self.transport.close()

    def look(self, now: float) -> None:
        """End the connection if it has waited too long; `now` is in the loop's seconds."""
        awaited, most_s = self._awaits()
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        elif now - self._since >= most_s:
            self._end()

    def cut(self) -> None:
        """Close the connection, and drop what was not sent yet."""
        self._is_cut = True
        self.transport.abort()

    async def sent(self) -> bool:
        """Wait until all that was written has left, or the connection is lost; return whether it has left."""
        await asyncio.sleep(0)  # uvloop writes at the end of a turn
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)
            await self.flow.drain()
            if not self.transport.is_closing():
                self.transport.set_write_buffer_limits()
        return not self._is_cut

    @abstractmethod
    def has_begun(self) -> bool:
        """Whether a part of a head has come."""

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _awaits(self) -> tuple[object, float]:
        """What the connection waits for, and for how many seconds at most."""
        if n_bytes := self.transport.get_write_buffer_size():
            return n_bytes + self._n_on_the_way(), self._settings.send_timeout_s
        if self._is_busy or self.transport.is_closing():
            return None, math.inf
        if self.cycle is None or self.has_begun():
            return ("head", self.cycle), self._settings.head_timeout_s
        return ("request", self.cycle), KEEP_ALIVE_S

    def _n_on_the_way(self) -> int:
        """Bytes that this system holds and the client's has not taken yet."""
        n_bytes = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(n_bytes, sys.byteorder)

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():
            self.cut()
            return
        if self.has_begun():
            self.transport.write(_TIMEOUT)
        self.transport.close()

    def _probe(self, waited_s: float) -> None:
        """Find out whether a client that has ended its sending is there, and once more after twice the time."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.cut()  # what was sent came back
            return
        if self._takes_probes():
            self.transport.write(PROBE)
        self.loop.call_later(2 * waited_s, self._probe, 2 * waited_s)

    def _takes_probes(self) -> bool:
        """Only before an answer begins, and HTTP/1.0 knows none."""
        is_first = self._is_busy and not self.pipeline and not self.cycle.response_started
        return is_first and self.cycle.scope["http_version"] == "1.1"
