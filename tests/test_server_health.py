"""Health: ok until the engine is broken."""

from __future__ import annotations

import httpx2
from conftest import Serve
from pydantic import SecretStr
from stub_engine import StubEngine

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
