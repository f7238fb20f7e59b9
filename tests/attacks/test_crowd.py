"""More connections than a server holds, and than its process may open files for."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer
from fixtures.raw_client import OFFER, PLAIN, answer, connected, until_closed
from fixtures.waiting import wait_until

from ramet.server.crowd import N_SURPLUS, RESERVED_FILES, Crowd
from ramet.server.settings import ServerSettings

ASK_TEXT = PLAIN.replace(b"/v1/systemone", b"/v1/chat/completions")
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "max_connections" in r.getMessage()]


def n_open(live: LiveServer) -> int:
    return len(live.server.server_state.connections)


@pytest.fixture
def crowded(serve: Serve) -> Iterator[tuple[LiveServer, list[socket.socket]]]:
    """A server of two connections, and two that do nothing."""
    live = serve(StubEngine(), ServerSettings(max_connections=2))
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(live.port)) for _ in range(2)]
        wait_until(lambda: n_open(live) == 2)
        yield live, idle


def test_one_beyond_the_limit_is_told_so(crowded: tuple[LiveServer, list[socket.socket]]) -> None:
    live, _ = crowded
    for asked, shape in ((PLAIN, b'{"detail": '), (OFFER, b'{"detail": '), (ASK_TEXT, b'{"error": ')):
        with connected(live.port) as client:
            client.sendall(asked)
            head, body = until_closed(client).split(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1" in head
            assert b"\r\nx-request-id: " in head
            assert body.startswith(shape)
            assert b'"unavailable"' in body


def test_probes_are_answered_beyond_it(crowded: tuple[LiveServer, list[socket.socket]]) -> None:
    live, _ = crowded
    for _ in range(3):
        with connected(live.port) as client:
            client.sendall(HEALTH)
            assert until_closed(client).startswith(b"HTTP/1.1 200 ")


def test_each_time_that_it_is_met_has_a_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    live = serve(StubEngine(), ServerSettings(max_connections=2))
    for n_times in (1, 2):
        wait_until(lambda: n_open(live) == 0)
        with connected(live.port) as client:
            client.sendall(PLAIN)
            assert answer(client).startswith(b"HTTP/1.1 200 ")
            with connected(live.port):
                wait_until(lambda: n_open(live) == 2)
                for _ in range(3):
                    with connected(live.port) as other:
                        other.sendall(PLAIN)
                        assert until_closed(other).startswith(b"HTTP/1.1 503 ")
        told = "2 connections are open, the limit (max_connections): further ones get a 503"
        assert lines(caplog) == [told] * n_times
        wait_until(lambda: not live.server._crowd._is_met)


def test_what_is_kept_open_keeps_its_place(crowded: tuple[LiveServer, list[socket.socket]]) -> None:
    live, (client, _) = crowded
    for asked in (PLAIN, OFFER, OFFER):
        with connected(live.port):
            wait_until(lambda: n_open(live) == 3)
            client.sendall(asked)
            assert answer(client).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: n_open(live) == 2)


def test_a_flood_is_dropped(crowded: tuple[LiveServer, list[socket.socket]]) -> None:
    live, idle = crowded
    with ExitStack() as stack:
        many = [stack.enter_context(connected(live.port)) for _ in range(N_SURPLUS + 200)]
        assert [until_closed(client) for client in many[N_SURPLUS:]] == [b""] * 200
        assert n_open(live) == 2 + N_SURPLUS
    wait_until(lambda: n_open(live) == 2)
    idle[0].sendall(PLAIN)
    assert answer(idle[0]).startswith(b"HTTP/1.1 200 ")


PROGRAM = """
import resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
from fakes.stub_engine import StubEngine
from ramet.server import app, ServerSettings, Listener
from ramet.server.access_log import log_to_stderr
log_to_stderr()

class Hungry(StubEngine):
    files = []

    async def decide_async(self, request):
        if request.state == "eat":
            while True:
                try:
                    self.files.append(open("/dev/null"))
                except OSError:
                    break
        elif request.state == "spew":
            self.files.clear()
        return await super().decide_async(request)

settings = ServerSettings(port=0, access_log=False)
with Listener.open(settings) as listener:
    server = app.server_for(Hungry(), settings)
    server.config.loop = sys.argv[2]
    print(server._crowd.limit, listener.port, flush=True)
    server.run(list(listener.sockets))
"""


def started(n_files: int, loop: str) -> tuple[subprocess.Popen[str], int, int]:
    """A server whose process may open so many files; its limit of connections, and its port."""
    here = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(n_files), loop], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": f"{here.parent}:{here}"},
    )  # fmt: skip
    assert process.stdout is not None
    limit, port = map(int, process.stdout.readline().split())
    return process, limit, port


def decide(client: httpx2.Client, state: str) -> int:
    question = {"q": {"type": "noul", "instructions": "Is it late?"}}
    return client.post("/v1/systemone", json={"state": state, "questions": question}).status_code


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_limit_lies_below_the_files_that_may_be_open(loop: str) -> None:
    process, limit, port = started(200, loop)
    try:
        assert 0 < limit < 200 - RESERVED_FILES
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client, ExitStack() as stack:
            assert decide(client, "x") == 200
            many = [stack.enter_context(connected(port)) for _ in range(300)]
            assert until_closed(many[-1]) == b""
            assert decide(client, "x") == 200
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            wait_until(lambda: client.get("/health").status_code == 200)
            wait_until(lambda: decide(client, "x") == 200)
    finally:
        process.terminate()
        _, err = process.communicate()
    assert 1 <= err.count("the limit (max_connections)") <= 4  # once a time, however many there are
    assert "Traceback" not in err


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_process_without_files_goes_on_when_it_has_some(loop: str) -> None:
    process, _, port = started(200, loop)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert decide(client, "eat") == 200
            with ExitStack() as stack:
                for _ in range(5):
                    stack.enter_context(connected(port))
                assert [decide(client, "x") for _ in range(20)] == [200] * 20
                assert decide(client, "spew") == 200
            with connected(port) as other:
                other.sendall(PLAIN)
                assert answer(other).startswith(b"HTTP/1.1 200 ")
    finally:
        process.terminate()
        _, err = process.communicate()
    assert "Traceback" not in err
    assert len(err) < 2000


def test_more_than_may_be_open_is_cut_down(caplog: pytest.LogCaptureFixture) -> None:
    derived = Crowd.of(ServerSettings()).limit
    assert Crowd.of(ServerSettings(max_connections=3)).limit == 3
    assert not caplog.records
    assert Crowd.of(ServerSettings(max_connections=1 << 20)).limit == derived
    assert lines(caplog) == [f"max_connections is {derived} here, not {1 << 20}: `ulimit -n` allows no more"]
    assert caplog.records[0].levelno == logging.WARNING
