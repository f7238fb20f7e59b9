"""How a server ends: what runs is finished, or answered; either signal does the same; a second one ends it at once."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written

from ramet.generation import GenerationRequest, Piece
from ramet.server.settings import ServerSettings

BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
LONG = 600.0  # seconds, that nobody waits for
PROGRAM = """
import sys, time
from fakes.stub_engine import StubEngine
from ramet.server import ServerSettings, Signals, serve

class Telling(StubEngine):
    async def decide_async(self, request):
        print("deciding", flush=True)
        return await super().decide_async(request)

with Signals() as signals:
    serve(Telling(delay_s=float(sys.argv[1])), ServerSettings(port=0, drain_s=int(sys.argv[2])), signals=signals)
    print("closing", flush=True)
    time.sleep(float(sys.argv[3]))
    print("closed", flush=True)
"""
STUCK = (
    """
import time
from ramet.server import parse_body
parse_body.parse_json = lambda body: print("parsing", flush=True) or time.sleep(3600)
"""
    + PROGRAM
)
Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `serve` in a process of its own; gives it and its address."""
    here, started = Path(__file__).parents[1], []

    def run(*words: object, program: str = PROGRAM) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=here.parent,
            env={"PYTHONPATH": f"{here.parent}:{here}"},
        )
        started.append(process)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "answers at" in line)
        return process, line.split("answers at ")[1].strip()

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ask(url: str, body: dict[str, Any] = BODY) -> tuple[threading.Thread, list[httpx2.Response]]:
    """A client, and what it was answered; nothing where its connection broke."""
    replies: list[httpx2.Response] = []

    def run() -> None:
        with contextlib.suppress(httpx2.TransportError):
            replies.append(httpx2.post(url, json=body, timeout=LONG))

    client = threading.Thread(target=run)
    client.start()
    return client, replies


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_request_is_answered_and_the_program_goes_on(start: Start, number: int) -> None:
    process, url = start(3, 30, 0)  # seconds, in which the signal comes
    client, replies = ask(f"{url}/v1/systemone")
    assert process.stdout is not None
    assert process.stdout.readline() == "deciding\n"
    process.send_signal(number)
    client.join()
    assert [reply.status_code for reply in replies] == [200]
    out, err = process.communicate()
    assert (out, process.returncode) == ("closing\nclosed\n", 0)
    assert "Traceback" not in err
    assert "stopping; 1 running requests get 30 s to finish" in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(start: Start, number: int, status: int) -> None:
    process, url = start(LONG, 600, 0)
    client, replies = ask(f"{url}/v1/systemone")
    assert process.stdout is not None
    assert process.stdout.readline() == "deciding\n"
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("stopping" in line for line in process.stderr)
    process.send_signal(number)
    out, err = process.communicate()
    assert (out, err, process.returncode) == ("", "", status)
    client.join()  # its connection broke
    assert replies == []


def test_a_second_signal_ends_what_comes_after_serving_too(start: Start) -> None:
    process, _ = start(0, 30, LONG)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (out, process.returncode) == ("", 130)
    assert "Traceback" not in err


def test_a_thread_that_hangs_is_not_waited_for(start: Start) -> None:
    process, url = start(0, 0, 0, program=STUCK)
    client, replies = ask(f"{url}/v1/systemone", BODY | {"state": "x" * 100_000})
    assert process.stdout is not None
    assert process.stdout.readline() == "parsing\n"
    process.send_signal(signal.SIGTERM)
    client.join()
    assert [reply.status_code for reply in replies] == [503]
    out, err = process.communicate()
    assert (out, process.returncode) == ("closing\nclosed\n", 0)
    assert "Traceback" not in err


@pytest.mark.parametrize(("path", "body"), [("/v1/systemone", BODY), ("/v1/completions", {"prompt": "a"})])
def test_past_the_limit_a_request_is_answered_with_a_503(serve: Serve, path: str, body: dict[str, Any]) -> None:
    engine = StubEngine(delay_s=LONG, text=StubWriter(reply=written("a river"), delay_s=LONG))
    live = serve(engine, ServerSettings(drain_s=0))
    client, replies = ask(live.url + path, body)
    while client.is_alive() and not engine.n_running + engine.text.n_running:
        time.sleep(0.01)
    live.server.stop()
    client.join()
    assert replies[0].status_code == 503
    told = replies[0].json()
    error = told["detail"] if path == "/v1/systemone" else told["error"]
    assert error["error_type" if path == "/v1/systemone" else "code"] == "unavailable"
    assert "the server stops" in error["message"]
    assert replies[0].headers["retry-after"] == "1"
    assert engine.n_cancelled + engine.text.n_cancelled == 1


class Stuck(StubWriter):
    """Writes one piece, and waits."""

    def _pieces(self, request: GenerationRequest) -> Iterator[Piece]:  # type: ignore[override]
        for piece in super()._pieces(request):
            yield piece
            self.delay_s = LONG


def test_past_the_limit_a_stream_ends_with_an_error(serve: Serve) -> None:
    writer = Stuck(reply=written("a river that is long"), width=2)
    live = serve(StubEngine(text=writer), ServerSettings(drain_s=0))
    lines = []
    body = {"prompt": "a", "stream": True}
    with httpx2.stream("POST", live.url + "/v1/completions", json=body, timeout=LONG) as reply:
        for line in filter(None, reply.iter_lines()):
            lines.append(line)
            live.server.stop()
    assert reply.status_code == 200
    first, last = (json.loads(lines[i].removeprefix("data: ")) for i in (0, -1))
    assert first["choices"]
    assert last["error"]["code"] == "unavailable"
    assert "data: [DONE]" not in lines
    assert (writer.n_running, writer.n_cancelled) == (0, 1)
