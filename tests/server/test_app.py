"""The server as a whole: settings and keys."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from conftest import Serve
from fakes.stub_engine import StubEngine
from pydantic import SecretStr, ValidationError

from ramet.server.app import serve as serve_until_stopped
from ramet.server.authentication import read_keys
from ramet.server.settings import ServerSettings

BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
GUARDED = [("POST", "/v1/systemone"), ("GET", "/v1/models"), ("GET", "/v1/models/stub"), ("GET", "/metrics")]


def test_settings_are_safe_by_default() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.port, settings.api_key) == ("127.0.0.1", 8000, ())
    assert settings.aliases == {"jev-latest": None}


@pytest.mark.parametrize(
    "wrong",
    [
        {"hosts": "x"},
        {"port": 70000},
        {"max_body_bytes": 0},
        {"api_key": ""},
        {"api_key": ("a", "")},
        {"api_key": " a"},
        {"api_key": "a\n"},
        {"api_key": "a\x00b"},
    ],
)
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


def test_each_of_several_keys_will_do(serve: Serve) -> None:
    url = serve(StubEngine(), ServerSettings(api_key=("one", "two"))).url + "/v1/models"

    def status(key: str) -> int:
        return httpx2.get(url, headers={"authorization": f"Bearer {key}"}).status_code

    assert [status(key) for key in ("one", "two", "onetwo", "tw")] == [200, 200, 401, 401]


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\n\n  one  \r\ntwo # not a comment\n", encoding="utf-8")
    assert read_keys(file) == ["one", "two # not a comment"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), (b"", "has no key"), (b"# one\n", "has no key"), (b"\xff", "UTF-8")],
)
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_keys(file)


def test_a_wrong_key_comes_before_a_wrong_body(serve: Serve) -> None:
    engine = StubEngine()
    url = serve(engine, ServerSettings(api_key=SecretStr("key"))).url + "/v1/systemone"
    assert httpx2.post(url, content=b"{").status_code == 401
    assert engine.received == []


def test_without_a_key_any_header_will_do(serve: Serve) -> None:
    url = serve(StubEngine()).url + "/v1/systemone"
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic x"}):
        assert httpx2.post(url, json=BODY, headers=headers).status_code == 200


def test_collections_pass_over_what_was_loaded_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, left = StubEngine(), []
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda server, sockets: left.append(any(it is engine for it in gc.get_objects()))
    )
    serve_until_stopped(engine, ServerSettings(port=0))
    assert left == [False]
    assert any(it is engine for it in gc.get_objects())
