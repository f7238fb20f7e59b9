"""The server through the clients and the suites that people use: TypeSafe's SDKs, jevcompat, jevbench."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import typesafe_sdk
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer
from fixtures.waiting import GUARD_S
from pydantic import SecretStr
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, RetryPolicy, Score, TypeSafeClient

from ramet.server.settings import ServerSettings

LONG_STATE = "The parcel did not come, and the seller says that it did. " * 70  # above 4 kB
UNNORMALISED = ["caf\u00e9", "cafe\u0301"]
QUESTIONS: dict[str, Noul | Choice | Score] = {
    "refund": Noul(instructions="Does the customer want money back?"),
    "place": Choice(instructions="Where?", criteria=dict.fromkeys(UNNORMALISED)),
    "anger": Score(instructions="How angry?", criteria=["calm", {"label": "angry"}]),
}


def command(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a suite's command line out of this environment."""
    program = Path(sys.executable).parent / name
    return subprocess.run([program, *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("key", "n_should"), [(None, 13), ("a-key", 15)])
def test_jevcompat_finds_nothing_wrong(serve: Serve, tmp_path: Path, key: str | None, n_should: int) -> None:
    server = serve(StubEngine(), ServerSettings(api_key=SecretStr(key) if key else None))
    assert_conformant(server.url, tmp_path, n_should, *(["--key", key] if key else []))


def test_jevcompat_finds_nothing_wrong_with_any_engine(live: LiveServer, tmp_path: Path) -> None:
    assert_conformant(live.url, tmp_path, 13)


def assert_conformant(url: str, tmp_path: Path, n_should: int, *args: str) -> None:
    ran = command("jevcompat", "test", url, "--json", str(tmp_path / "report.json"), *args)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads((tmp_path / "report.json").read_text())["summary"]
    assert summary["verdict"] == "conformant"
    assert summary["MUST"] | {"skipped": 0} == {"passed": 32, "failed": 0, "skipped": 0, "tested": 32}
    assert summary["SHOULD"] | {"skipped": 0} == {"passed": n_should, "failed": 0, "skipped": 0, "tested": n_should}


def test_jevbench_check_and_examples(live: LiveServer, tmp_path: Path) -> None:
    target = ["--url", f"{live.url}/v1/systemone", "--model", "jev-latest"]
    checked = command("jevbench", "check", *target)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "jevbench check: OK" in checked.stdout
    out = tmp_path / "report.json"
    ran = command("jevbench", "eval", *target, "--suite", "examples", "--no-cache", "--out", str(out))
    assert ran.returncode == 0, ran.stdout + ran.stderr  # no errors: every answer was valid
    isolation = next(line for line in ran.stdout.splitlines() if line.strip().startswith("BAT "))
    assert isolation.split()[1] == "100.0", ran.stdout


def assert_parsed(response: typesafe_sdk.SystemOneResponse, server: LiveServer) -> None:
    assert response.model == server.engine.name
    assert 0 <= response.nouls["refund"].noul <= 1
    assert list(response.choices["place"].probabilities) == UNNORMALISED
    assert response.scores["anger"].legend == {0: "calm", 1: {"label": "angry"}}  # the SDK makes them numbers
    assert response.usage.output_tokens == 3


def test_the_python_sdk_with_zstd(live: LiveServer) -> None:
    encodings: list[str | None] = []
    hooks = {"request": [lambda request: encodings.append(request.headers.get("content-encoding"))]}
    with (
        httpx2.Client(event_hooks=hooks) as http,
        TypeSafeClient(api_key="x", base_url=live.url, timeout=GUARD_S, http_client=http) as client,
    ):
        assert_parsed(client.system_one(LONG_STATE, QUESTIONS), live)
        names = [model.name for model in client.models.list().models]
    assert encodings == ["zstd", None]
    assert names == [live.engine.name, "jev-latest"]


def test_the_async_python_sdk_with_many_at_once(live: LiveServer) -> None:
    async def ask() -> list[typesafe_sdk.SystemOneResponse]:
        async with AsyncTypeSafeClient(api_key="x", base_url=live.url, timeout=GUARD_S, compression="zstd") as client:
            return await asyncio.gather(*(client.system_one(LONG_STATE, QUESTIONS) for _ in range(16)))

    responses = asyncio.run(ask())
    for response in responses:
        assert response.nouls["refund"].noul == pytest.approx(responses[0].nouls["refund"].noul, abs=1e-5)
        assert_parsed(response, live)


def test_the_python_sdk_reads_our_errors(serve: Serve) -> None:
    engine = StubEngine()
    server = serve(engine, ServerSettings(api_key=SecretStr("key")))
    once = RetryPolicy(max_retries=0)
    with TypeSafeClient(api_key="key", base_url=server.url, retry=once) as client:
        with pytest.raises(typesafe_sdk.TypeSafeNotFoundError, match="'none' is not served") as unknown:
            client.system_one("x", QUESTIONS, model="none")
        assert unknown.value.request_id is not None
        with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match=r"q\.criteria: should have at most 10"):
            client.system_one("x", {"q": Score(criteria=["level"] * 11)})
        engine.max_running = 0
        with pytest.raises(typesafe_sdk.TypeSafeRateLimitError) as full:
            client.system_one("x", QUESTIONS)
        assert full.value.retry_after_ms == 1500
    with (
        TypeSafeClient(api_key="other", base_url=server.url, retry=once) as stranger,
        pytest.raises(typesafe_sdk.TypeSafeAuthenticationError, match="the API key is wrong"),
    ):
        stranger.system_one("x", QUESTIONS)


def test_the_python_sdk_waits_for_a_full_queue(serve: Serve) -> None:
    class Busy(StubEngine):
        async def decide_async(self, request: Any) -> Any:
            self.max_running = 1000 if self.received else 0
            return await super().decide_async(request)

    server = serve(Busy(retry_after_s=0.01))
    with TypeSafeClient(api_key="x", base_url=server.url) as client:
        assert_parsed(client.system_one("x", QUESTIONS), server)


@pytest.mark.network
def test_the_javascript_sdk(live: LiveServer, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    install = [npm, "install", "--no-audit", "--no-fund", "--no-save", "@typesafe-ai/sdk@0.6.0"]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"npm cannot install @typesafe-ai/sdk: {installed.stderr[-300:]}")
    environment = os.environ | {"TYPESAFE_API_KEY": "x", "TYPESAFE_BASE_URL": live.url}
    script = Path(__file__).with_name("typesafe_client.mjs")
    ran = subprocess.run(
        [node, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    parsed = json.loads(ran.stdout)
    assert parsed["model"] == live.engine.name
    assert list(parsed["answers"]["category"]["probabilities"]) == ["billing", *UNNORMALISED]
    assert parsed["unknown"] == 404
