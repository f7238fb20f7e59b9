"""Clients that end their sending behind a request get its answer; those that are gone cost no work."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written
from fixtures.live_server import LiveServer, live_server
from fixtures.raw_client import BODY, UPGRADE, connected, until_closed
from fixtures.waiting import wait_until

from ramet.server.settings import ServerSettings
from ramet.server.timed_connection import PROBE

CHAT = {"messages": [{"role": "user", "content": "ab"}]}
ROUTES: dict[str, tuple[str, bytes, bytes]] = {  # the request line, the body, the end of the answer
    "health": ("GET /health", b"", b"}"),
    "models": ("GET /v1/models", b"", b"}"),
    "decisions": ("POST /v1/systemone", BODY, b"}"),
    "chat": ("POST /v1/chat/completions", json.dumps(CHAT).encode(), b"}"),
    "stream": ("POST /v1/chat/completions", json.dumps(CHAT | {"stream": True}).encode(), b"[DONE]\n\n\r\n0\r\n\r\n"),
    "no route": ("POST /none", BODY, b"}"),
}
HEADERS = {"": b"", "handed over": UPGRADE}
loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
headers = pytest.mark.parametrize("headers", HEADERS)


def request(route: str, headers: bytes, version: str = "1.1") -> bytes:
    line, body, _ = ROUTES[route]
    start = f"{line} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    return start + headers + b"\r\n" + body


def engine(delay_s: float = 0.0) -> StubEngine:
    return StubEngine(delay_s=delay_s, text=StubWriter(reply=written("a river"), width=2, delay_s=delay_s))


def n_connections(live: LiveServer) -> int:
    return len(live.server.server_state.connections)


@loops
@headers
@pytest.mark.parametrize("route", ROUTES)
def test_the_whole_answer_comes_and_the_connection_ends(loop: str, headers: str, route: str) -> None:
    with live_server(engine(0.2), None, loop) as live, connected(live.port) as client:
        client.sendall(request(route, HEADERS[headers]))
        client.shutdown(socket.SHUT_WR)
        found = until_closed(client).replace(PROBE, b"")
        assert found.startswith(b"HTTP/1.1 404 " if route == "no route" else b"HTTP/1.1 200 ")
        assert found.endswith(ROUTES[route][2])
        wait_until(lambda: not n_connections(live))


@loops
@headers
def test_an_answer_that_takes_long(loop: str, headers: str) -> None:
    """Interim answers come first, which clients of HTTP/1.1 pass over."""
    with live_server(engine(0.5), None, loop) as live, connected(live.port) as client:
        client.sendall(request("decisions", HEADERS[headers]))
        client.shutdown(socket.SHUT_WR)
        found = until_closed(client)
    assert found.startswith(PROBE)
    assert found.replace(PROBE, b"").startswith(b"HTTP/1.1 200 ")
    assert found.endswith(b"}")


@loops
def test_one_of_a_client_of_http_1_0(loop: str) -> None:
    with live_server(engine(0.5), None, loop) as live, connected(live.port) as client:
        client.sendall(request("decisions", b"", "1.0"))
        client.shutdown(socket.SHUT_WR)
        assert until_closed(client).startswith(b"HTTP/1.1 200 ")


@loops
@headers
def test_requests_one_behind_another(loop: str, headers: str) -> None:
    with live_server(engine(1.5), None, loop) as live, connected(live.port) as client:
        client.sendall(request("decisions", HEADERS[headers]) + request("health", b"") + request("models", b""))
        client.shutdown(socket.SHUT_WR)
        found = until_closed(client)
    assert found.replace(PROBE, b"").count(b"HTTP/1.1 200 ") == 3
    assert found.endswith(b"]}")


@loops
def test_a_request_that_is_not_whole_is_none(loop: str) -> None:
    with live_server(engine(), None, loop) as live, connected(live.port) as client:
        client.sendall(request("decisions", b"")[:-1])
        client.shutdown(socket.SHUT_WR)
        assert until_closed(client) == b""


def close(client: socket.socket) -> None:
    client.close()


def half_close_first(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    assert client.recv(len(PROBE)) == PROBE
    client.close()


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


@loops
@headers
@pytest.mark.parametrize("route", ["decisions", "chat", "stream"])
@pytest.mark.parametrize("leave", [close, half_close_first, reset])
def test_a_client_that_is_gone_cancels_its_work(
    loop: str, headers: str, route: str, leave: Callable[[socket.socket], None]
) -> None:
    stub = engine(3600)
    assert stub.text is not None
    with live_server(stub, None, loop) as live, connected(live.port) as client:
        client.sendall(request(route, HEADERS[headers]))
        wait_until(lambda: stub.n_running + stub.text.n_running)
        leave(client)
        wait_until(lambda: stub.n_cancelled + stub.text.n_cancelled)
        assert stub.n_running + stub.text.n_running == 0
        wait_until(lambda: not n_connections(live))


@loops
@headers
def test_one_that_leaves_a_stream_half_closed(loop: str, headers: str) -> None:
    stub = StubEngine(text=StubWriter(reply=written("ab" * 4000), width=1, delay_s=0.05))
    assert stub.text is not None
    with live_server(stub, ServerSettings(), loop) as live, connected(live.port) as client:
        client.sendall(request("stream", HEADERS[headers]))
        client.shutdown(socket.SHUT_WR)
        found = b""
        while b"HTTP/1.1 200 " not in found:
            found += client.recv(16)
        client.close()
        wait_until(lambda: stub.text.n_cancelled)
        assert stub.text.n_canvases < 4000
