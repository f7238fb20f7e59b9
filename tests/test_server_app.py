"""The server as a whole: settings, keys, and how it stops."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from conftest import Serve
from pydantic import SecretStr, ValidationError
from stub_engine import StubEngine

from ramet.server.app import serve as serve_until_stopped
from ramet.server.settings import ServerSettings

BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
GUARDED = [("POST", "/v1/systemone"), ("GET", "/v1/models"), ("GET", "/v1/models/stub"), ("GET", "/metrics")]
SLOW_SERVER = """
import sys
from stub_engine import StubEngine
from ramet.server import ServerSettings, serve

class Telling(StubEngine):
    async def decide_async(self, request):
        print("deciding", flush=True)
        return await super().decide_async(request)

serve(Telling(delay_s=0.5), ServerSettings(port=0))
"""


def test_settings_are_safe_by_default() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.port, settings.api_key) == ("127.0.0.1", 8000, None)
    assert settings.aliases == {"jev-latest": None}


@pytest.mark.parametrize("wrong", [{"hosts": "x"}, {"port": 70000}, {"max_body_bytes": 0}, {"api_key": ""}])
def test_settings_refuse_what_they_do_not_know(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServerSettings(**wrong)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(ServerSettings(api_key=SecretStr("secret")))


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_key_guards(serve: Serve, method: str, path: str) -> None:
    url = serve(StubEngine(), ServerSettings(api_key=SecretStr("kéy"))).url + path

    def status(value: bytes | None) -> int:
        headers = {} if value is None else {b"authorization": value}
        reply = httpx2.request(method, url, json=BODY if method == "POST" else None, headers=headers)
        if reply.status_code == 401:
            assert reply.json()["detail"]["error_type"] == "authentication_error"
            assert reply.headers["www-authenticate"] == "Bearer"
        return reply.status_code

    refused = [None, b"Bearer wrong", b"Bearer", b"Basic k\xc3\xa9y", b"Bearer k\xc3\xa9y2", b"Bearer \xff"]
    assert [status(value) for value in refused] == [401] * len(refused)
    assert status("Bearer kéy".encode()) == 200
    assert status("bearer kéy".encode()) == 200


def test_a_wrong_key_comes_before_a_wrong_body(serve: Serve) -> None:
    engine = StubEngine()
    url = serve(engine, ServerSettings(api_key=SecretStr("key"))).url + "/v1/systemone"
    assert httpx2.post(url, content=b"{").status_code == 401
    assert engine.received == []


def test_without_a_key_any_header_will_do(serve: Serve) -> None:
    url = serve(StubEngine()).url + "/v1/systemone"
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic x"}):
        assert httpx2.post(url, json=BODY, headers=headers).status_code == 200


@pytest.fixture
def slow_server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`serve` in a process of its own, and its address."""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here.parent,
        env={"PYTHONPATH": f"{here.parent}:{here}"},
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "running on" in line)
        yield process, line.split("running on ")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def test_a_running_request_is_answered_at_shutdown(slow_server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = slow_server
    replies: list[httpx2.Response] = []
    client = threading.Thread(target=lambda: replies.append(httpx2.post(f"{url}/v1/systemone", json=BODY, timeout=30)))
    client.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "deciding\n"
    process.send_signal(signal.SIGTERM)
    client.join(30)
    assert [reply.status_code for reply in replies] == [200]
    assert process.wait(30) in (0, -signal.SIGTERM)


def test_collections_pass_over_what_was_loaded_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, left = StubEngine(), []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: left.append(any(it is engine for it in gc.get_objects())))
    serve_until_stopped(engine)
    assert left == [False]
    assert any(it is engine for it in gc.get_objects())
