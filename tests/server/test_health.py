"""Health: ok until the engine is broken."""

from __future__ import annotations

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from pydantic import SecretStr

from ramet.errors import EngineFault
from ramet.server.settings import ServerSettings
from ramet.version import __version__


def test_health_turns_bad_with_the_engine_and_needs_no_key(serve: Serve) -> None:
    engine = StubEngine()
    url = serve(engine, ServerSettings(api_key=SecretStr("key"))).url + "/health"
    good = httpx2.get(url)
    assert good.status_code == 200
    assert good.json() == {"status": "ok", "model": "stub", "version": __version__, "fault": None}
    engine.fault = EngineFault("the device is lost")
    bad = httpx2.get(url)
    assert bad.status_code == 503
    assert bad.json() == {"status": "broken", "model": "stub", "version": __version__, "fault": "the device is lost"}


@pytest.mark.parametrize("path", ["/", "/health"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_probes_of_every_kind_are_answered(serve: Serve, method: str, path: str) -> None:
    engine = StubEngine()
    url = serve(engine, ServerSettings(api_key=SecretStr("key"))).url + path
    reply = httpx2.request(method, url)
    assert reply.status_code == 200
    assert reply.content == b"" if method == "HEAD" else reply.json()["status"] == "ok"
    engine.fault = EngineFault("gone")
    assert httpx2.request(method, url).status_code == 503


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/stub", "/metrics", "/openapi.json"])
def test_head_is_get_without_the_body(serve: Serve, path: str) -> None:
    url = serve(StubEngine()).url + path
    got, head = httpx2.get(url), httpx2.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # whose counts go on
        assert head.headers["content-length"] == got.headers["content-length"]
