"""The line that a request gets in the log."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written

from ramet.server.access_log import FORMAT, TIME_FORMAT
from ramet.server.settings import ServerSettings

BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
LINE = re.compile(
    r"(?P<client>\S+) (?P<method>[A-Z]+) (?P<path>\S+) (?P<status>\d+)(?P<cut> cut)? in \d+\.\d{3} s"
    r"(?: tokens=(?P<tokens>\d+) cached=(?P<cached>\d+) written=(?P<written>\d+))? id=(?P<id>\S+)"
)


class Lines:
    """What was logged. A line comes a moment behind the answer that a client sees."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def wait(self, n_lines: int = 1) -> list[dict[str, str | None]]:
        while len(found := [r for r in self._caplog.records if r.name == "ramet.server.access"]) < n_lines:
            time.sleep(0.01)
        matches = [LINE.fullmatch(record.getMessage()) for record in found]
        assert all(matches), found
        return [match.groupdict() for match in matches if match]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "ramet.server.access")
    return Lines(caplog)


def test_a_decision(serve: Serve, lines: Lines) -> None:
    live = serve(StubEngine())
    reply = httpx2.post(f"{live.url}/v1/systemone?key=secret", json=BODY)
    usage = reply.json()["usage"]
    assert lines.wait() == [
        {
            "client": "127.0.0.1", "method": "POST", "path": "/v1/systemone", "status": "200", "cut": None,
            "tokens": str(usage["input_tokens"]), "cached": "1", "written": "1",
            "id": reply.headers["x-typesafe-request-id"],
        }
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_text(serve: Serve, lines: Lines, stream: bool) -> None:
    writer = StubWriter(reply=written("a river"))
    body = {"prompt": "a", "stream": stream}
    httpx2.post(f"{serve(StubEngine(text=writer)).url}/v1/completions", json=body)
    (line,) = lines.wait()
    assert (line["status"], line["cut"], line["cached"]) == ("200", None, "2")
    assert line["written"] == str(len(writer.reply))


def test_a_client_that_goes_away(serve: Serve, lines: Lines) -> None:
    writer = StubWriter(reply=written("a river that is long"), width=1, delay_s=0.05)
    live = serve(StubEngine(text=writer))
    with httpx2.stream("POST", f"{live.url}/v1/completions", json={"prompt": "a", "stream": True}) as reply:
        next(reply.iter_lines())
    assert lines.wait()[0]["cut"] == " cut"


def test_polls_have_none_and_errors_have(serve: Serve, lines: Lines) -> None:
    url = serve(StubEngine()).url
    for path in ("/health", "/metrics", "/"):
        httpx2.get(url + path)
    httpx2.head(f"{url}/health")
    httpx2.get(f"{url}/no%0Awhere%20200")
    (line,) = lines.wait()
    assert (line["path"], line["status"], line["tokens"]) == ("/no%0Awhere%20200", "404", None)


def test_a_setting_leaves_it_out(serve: Serve, lines: Lines) -> None:
    url = serve(StubEngine(), ServerSettings(access_log=False)).url
    assert httpx2.post(f"{url}/v1/systemone", json=BODY).status_code == 200
    other = serve(StubEngine()).url
    httpx2.get(f"{other}/v1/models")
    assert [line["path"] for line in lines.wait()] == ["/v1/models"]


def test_it_goes_where_all_lines_go(tmp_path: Path) -> None:
    """To stderr with the time, in one form; and not where a program has said where its log is to go."""
    here = Path(__file__).parents[1]
    program = """
import logging, sys
from ramet.server.access_log import log_to_stderr
if sys.argv[1:]:
    logging.basicConfig(filename=sys.argv[1], format="%(message)s")
log_to_stderr()
logging.getLogger("ramet.server.access").info("a request")
logging.getLogger("ramet.engine.engine").warning("a warning")
logging.getLogger("httpx2").info("what nobody asked for")
"""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True, text=True, check=True, env={"PYTHONPATH": str(here.parent)},
        )  # fmt: skip

    said = run()
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
    assert re.fullmatch(f"{moment} INFO a request\n{moment} WARNING a warning\n", said.stderr)
    assert said.stdout == ""
    file = tmp_path / "log"
    assert run(str(file)).stderr == ""
    assert file.read_text() == "a request\na warning\n"
    assert "%(asctime)s" in FORMAT
    assert "%z" in TIME_FORMAT
