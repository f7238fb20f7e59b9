"""Listener: the sockets of an address, bound and listening before there is anything to serve."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress

from ramet.errors import RametError
from ramet.server.settings import ServerSettings

BACKLOG = 2048  # connections that wait to be taken


class ListenError(RametError):
    """The server cannot listen on the address. The message names it, and the remedy."""


class Listener:
    """Every address that the host's name stands for, on one port. A context manager that closes its sockets."""

    def __init__(self, host: str, sockets: Sequence[socket.socket]) -> None:
        self.host, self.sockets = host, tuple(sockets)

    @classmethod
    def open(cls, settings: ServerSettings) -> Listener:
        """Bind and listen. Port 0 takes a free port, which `url` has. Raises ListenError."""
        sockets: list[socket.socket] = []
        try:
            for family, address in _addresses(settings.host, settings.port):
                port = sockets[0].getsockname()[1] if sockets else settings.port
                _add(sockets, family, (address[0], port, *address[2:]))
            if not sockets:
                raise OSError(errno.EADDRNOTAVAIL, "this machine has no such address")
        except OSError as error:
            for each in sockets:
                each.close()
            raise ListenError(_message(error, settings.host, settings.port)) from error
        return cls(settings.host, sockets)

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def copies(self) -> list[socket.socket]:
        """Further handles of the same sockets: closing them leaves these listening."""
        return [each.dup() for each in self.sockets]

    def close(self) -> None:
        for each in self.sockets:
            each.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str | int, ...]]]:
    """The families and addresses of the host, each once."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    inet = (socket.AF_INET, socket.AF_INET6)
    return list(
        dict.fromkeys((int(family), tuple(map(_part, address))) for family, *_, address in found if family in inet)
    )


def _part(value: object) -> str | int:
    """A part of an internet address, which is never bytes."""
    assert isinstance(value, str | int)
    return value


def _add(sockets: list[socket.socket], family: int, address: tuple[str | int, ...]) -> None:
    """Add a socket that listens. As in asyncio, no socket is made for a protocol that this machine does not have."""
    try:
        # The protocol is named, for only then does asyncio turn Nagle's delays off.
        each = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError:
        return
    sockets.append(each)
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        with suppress(OSError):
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        each.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        sockets.remove(each)
        each.close()
        return
    each.listen(BACKLOG)


def _message(error: OSError, host: str, port: int) -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken: stop what listens there, or give another --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"{where} is not open to this user: give a --port from 1024 on"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: {host!r} is no address of this machine; --host 127.0.0.1 is this machine alone, 0.0.0.0 all"
    return f"{where} cannot be listened on: {error.strerror or error}"
