"""Clients that are slow on purpose: heads that never end, connections without a request, answers that nobody reads."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from operator import attrgetter
from typing import Any

import pytest
from attacks.bounded import bounded
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter
from fixtures.live_server import LiveServer, live_server
from fixtures.raw_client import ASK, OFFER, PLAIN, UPGRADE, answer, connected, until_closed
from fixtures.waiting import GUARD_S, wait_until

from ramet.generation import GenerationRequest, Piece, Position
from ramet.server import running, timed_connection
from ramet.server.access_log import AccessLog
from ramet.server.connection import MAX_AHEAD
from ramet.server.listener import Listener
from ramet.server.running import Server
from ramet.server.running_requests import RunningRequests
from ramet.server.settings import ServerSettings

HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"v" * 60_000
BIG = 64 << 20  # bytes, more than the system holds on the way
loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def dripped(client: socket.socket, data: bytes) -> bytes:
    """What the server says while it is sent a byte at a time, until it closes."""
    client.settimeout(0.01)
    for byte in data:
        try:
            client.send(bytes([byte]))
            if piece := client.recv(1 << 16):
                client.settimeout(GUARD_S)
                return piece + until_closed(client)
            return b""
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("the server waits for all of it")


@loops
@pytest.mark.parametrize("before", [b"", PLAIN, OFFER], ids=["first", "kept", "handed over"])
@pytest.mark.parametrize("begun", [b"", b"P", b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_ends(loop: str, before: bytes, begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_connection, "KEEP_ALIVE_S", 0.1)
    with live_server(StubEngine(), ServerSettings(head_timeout_s=0.1), loop) as live, connected(live.port) as client:
        if before:
            client.sendall(before)
            assert answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(begun)
        found = until_closed(client)
    assert found.startswith(b"HTTP/1.1 408 ") if begun else found == b""


@loops
@pytest.mark.parametrize("before", [b"", PLAIN, OFFER], ids=["first", "kept", "handed over"])
def test_a_head_in_drips(loop: str, before: bytes) -> None:
    with live_server(StubEngine(), ServerSettings(head_timeout_s=0.5), loop) as live, connected(live.port) as client:
        if before:
            client.sendall(before)
            assert answer(client).startswith(b"HTTP/1.1 200")
        found = dripped(client, HEAD)
    assert found == b"" or found.startswith(b"HTTP/1.1 408 ")


def test_many_heads_that_never_end_hold_no_memory() -> None:
    engine = StubEngine()
    with live_server(engine, ServerSettings(head_timeout_s=0.5)) as live, bounded(200):
        clients = [connected(live.port) for _ in range(500)]
        for client in clients:
            client.sendall(HEAD)
        assert all(until_closed(client).startswith(b"HTTP/1.1 408 ") for client in clients)
        wait_until(lambda: not live.server.server_state.connections)
        for client in clients:
            client.close()


IDLE = {
    "an answer": (PLAIN, b"200"),
    "an answer of h11": (OFFER, b"200"),
    "a HEAD": (b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
    "an address that is none": (b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
    "a body beyond the cap": (ASK % (3000, b"", b"{" * 3000), b"413"),
    "a body that nobody wanted": (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{", b"200"),
    "and empty lines": (PLAIN + b"\r\n\r\n", b"200"),
}


@loops
@pytest.mark.parametrize("what", IDLE)
def test_a_connection_that_idles_behind(loop: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_connection, "KEEP_ALIVE_S", 0.1)
    sent, status = IDLE[what]
    with live_server(StubEngine(), ServerSettings(max_body_bytes=1024), loop) as live, connected(live.port) as client:
        client.sendall(sent)
        assert until_closed(client).startswith(b"HTTP/1.1 " + status)


def test_a_body_in_drips_behind_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_connection, "KEEP_ALIVE_S", 0.5)
    with live_server(StubEngine()) as live, connected(live.port) as client:
        client.sendall(IDLE["a body that nobody wanted"][0])
        found = answer(client)
        assert found.startswith(b"HTTP/1.1 200")
        assert dripped(client, b"v" * 90_000) == b""


def test_a_request_that_takes_long_is_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_connection, "KEEP_ALIVE_S", 0.1)
    with live_server(StubEngine(delay_s=2), ServerSettings(head_timeout_s=0.1)) as live:
        for sent in (PLAIN, OFFER):
            with connected(live.port) as client:
                client.sendall(sent + b"POST /v1")  # and the next one's head has begun
                assert answer(client).startswith(b"HTTP/1.1 200")


class Endless(StubWriter):
    """Writes as fast as it can, and never ends."""

    def _pieces(self, request: GenerationRequest) -> Iterator[Piece]:  # type: ignore[override]
        (piece,) = StubWriter(reply=[20] * 5000, width=6000)._pieces(request)
        while True:
            yield self._piece(tuple(Position(each.token) for each in piece.positions))


def cut_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "ramet.server.access" and " cut in " in r.getMessage()]


@loops
@pytest.mark.parametrize("offer", [b"", UPGRADE], ids=["", "handed over"])
def test_a_stream_that_nobody_reads(loop: str, offer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ramet.server.access")
    body = json.dumps({"prompt": "a", "stream": True}).encode()
    writer = Endless()
    with live_server(StubEngine(text=writer), ServerSettings(send_timeout_s=0.5), loop) as live, bounded(200):
        with connected(live.port) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n" % (len(body), offer) + body
            )
            wait_until(lambda: writer.n_cancelled)
            wait_until(lambda: cut_lines(caplog))
        assert "/v1/completions 200 cut" in cut_lines(caplog)[0]
        assert writer.n_running == 0


class Body:
    """An application that answers with many bytes at once."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % BIG)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(BIG)})


@pytest.fixture
def serving() -> Iterator[Callable[[Any, ServerSettings, str], LiveServer]]:
    """Serves an application that is none of ours."""
    stopping: list[Callable[[], None]] = []

    def start(app: Any, settings: ServerSettings, loop: str) -> LiveServer:
        server = Server(app, RunningRequests(), settings)
        server.config.loop = loop
        listener = Listener.open(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": list(listener.sockets)})
        thread.start()
        stopping.extend([server.stop, thread.join, listener.close])
        return LiveServer(listener.url, listener.port, StubEngine(), server)

    yield start
    for stop in stopping:
        stop()


@loops
@pytest.mark.parametrize("kept", [True, False])
def test_an_answer_that_nobody_reads(serving: Any, loop: str, kept: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ramet.server.access")
    live = serving(AccessLog(Body()), ServerSettings(port=0, send_timeout_s=0.5), loop)
    with bounded(300), connected(live.port) as client:
        client.sendall(b"GET /x HTTP/1.1\r\n%s\r\n" % (b"" if kept else b"Connection: close\r\n"))
        wait_until(lambda: cut_lines(caplog))
        assert not live.server.server_state.connections


@loops
def test_an_answer_that_is_read_late_is_whole(serving: Any, loop: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ramet.server.access")
    live = serving(AccessLog(Body()), ServerSettings(port=0), loop)
    with contextlib.closing(HTTPConnection("127.0.0.1", live.port)) as client:
        for n_before in (0, 1):
            client.request("GET", "/x")
            wait_until(lambda: [c for c in live.server.server_state.connections if c.flow.write_paused])
            assert len(caplog.records) == n_before, "an answer on its way has no line yet"
            assert len(client.getresponse().read()) == BIG
            wait_until(lambda n=n_before: len(caplog.records) > n)  # type: ignore[misc]
    assert not cut_lines(caplog)


@loops
@pytest.mark.parametrize("offer", [b"", UPGRADE], ids=["", "handed over"])
@pytest.mark.parametrize("path", [b"completions", b"systemone"])
def test_clients_that_do_nothing_do_not_hold_up_the_end(
    loop: str, offer: bytes, path: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that nobody reads, and a body that does not come."""
    monkeypatch.setattr(running, "GRACE_S", 0.5)
    body, writer = json.dumps({"prompt": "a", "stream": True}).encode(), Endless()
    asked = (ASK % (len(body), offer, body)).replace(b"systemone", path)
    with live_server(StubEngine(text=writer), ServerSettings(drain_s=0), loop) as live, connected(live.port) as client:
        client.sendall(asked if path == b"completions" else asked[:-1])
        what = "cycle" if path == b"systemone" else "flow.write_paused"
        wait_until(lambda: [c for c in live.server.server_state.connections if attrgetter(what)(c)])
        live.server.stop()
        wait_until(lambda: not live.server.server_state.connections)
        if path == b"systemone":
            assert until_closed(client).startswith(b"HTTP/1.1 503 ")
        wait_until(lambda: not writer.n_running)
    assert not [record for record in caplog.records if record.exc_info]


def test_requests_that_come_before_their_turn_are_counted() -> None:
    """Each costs more to keep than to send."""
    with live_server(StubEngine(delay_s=GUARD_S), ServerSettings(drain_s=0)) as live, connected(live.port) as client:
        client.sendall(PLAIN + b"GET / HTTP/1.1\r\n\r\n" * (2 * MAX_AHEAD))
        assert until_closed(client).startswith(b"HTTP/1.1 400 ")
