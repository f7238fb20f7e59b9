"""The cache as a client sees it: usage, tenants, metrics, and the same bits over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from fixtures.live_server import LiveServer, live_server
from fixtures.tiny_engine import checkpoint, tiny_engine
from oracles.answers import assert_close

from ramet import cli
from tests.server.test_metrics import samples

WORDS = "the agent reads a file and says that it is on the state of the system "
NOUL = {"type": "noul", "instructions": "Is the task done?"}
CHOICE = {"type": "choice", "instructions": "What comes next?", "criteria": {"read": None, "write": None}}
FAMILY = pytest.mark.parametrize("family", ["gemma3", "gemma4", "qwen3_5"])


@pytest.fixture
def server(family: str, tmp_path: Path) -> Iterator[LiveServer]:
    """With every level of the cache."""
    with (
        tiny_engine(family, memory_cache_bytes=1 << 20, disk_cache=tmp_path, checkpoint_spacing=64) as engine,
        live_server(engine) as running,
    ):
        yield running


def ask(server: LiveServer, state: Any, **fields: Any) -> dict[str, Any]:
    body = {"state": state, "questions": {"a": NOUL, "b": CHOICE}, "x_method": "letters", **fields}
    reply = httpx2.post(f"{server.url}/v1/systemone", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def history(n_steps: int) -> list[dict[str, str]]:
    return [{"role": "tool", "content": f"{n} {WORDS}"} for n in range(n_steps)]


@FAMILY
def test_cached_tokens_grow_with_the_state(server: LiveServer) -> None:
    """And are fewer than the input's, also of the very same request again (D9)."""
    cached = []
    for n_steps in (4, 5, 6, 6):
        found = ask(server, history(n_steps))
        cached.append(found["usage"]["x_cached_tokens"])
        assert cached[-1] < found["usage"]["input_tokens"]
        assert_close(found["answers"], ask(server, history(n_steps), cache_salt=f"fresh {n_steps}")["answers"], 1e-4)
    assert cached[0] == 0
    assert 0 < cached[1] < cached[2] <= cached[3]


@FAMILY
def test_tenants_and_what_is_counted(server: LiveServer) -> None:
    state = history(8)
    usages = [ask(server, state, cache_salt=salt)["usage"] for salt in ("a", "b", "a", "", "")]
    cached = [usage["x_cached_tokens"] for usage in usages]
    assert [n > 0 for n in cached] == [False, False, True, False, True]
    found = {name[0]: value for name, value in samples(server.url).items()}
    assert found["ramet_cached_tokens_total"] == sum(cached)
    assert found["ramet_engine_prefix_hit_tokens_total"] >= sum(cached)
    assert found["ramet_engine_prefix_missed_tokens_total"] > 0
    assert found["ramet_engine_cache_device_bytes"] > 0
    below = {"memory_tier_bytes", "memory_tier_hits_total", "disk_tier_bytes", "tiers_misses_total"}
    assert {f"ramet_engine_cache_{name}" for name in below} <= found.keys()


@pytest.mark.parametrize("family", ["qwen3"])
@pytest.mark.parametrize("salt", [1, None, ["a"], {"a": "b"}])
def test_a_salt_that_is_no_text(server: LiveServer, salt: Any) -> None:
    body = {"state": "x", "questions": {"a": NOUL}, "cache_salt": salt}
    reply = httpx2.post(f"{server.url}/v1/systemone", json=body)
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "cache_salt"]


@FAMILY
def test_the_same_bits_over_http(family: str) -> None:
    """Each question alone and fresh, against both together, again and from a shorter state on."""
    with (
        tiny_engine(family, batch_invariant=True, checkpoint_spacing=128) as engine,
        live_server(engine) as server,
    ):
        state, questions = history(7), {"a": NOUL, "b": CHOICE}
        lone = {
            name: ask(server, state, questions={name: question}, cache_salt=name)["answers"][name]
            for name, question in questions.items()
        }
        ask(server, history(5))
        resumed = ask(server, state)
        assert resumed["usage"]["x_cached_tokens"] > 0
        assert resumed["answers"] == ask(server, state)["answers"] == lone


def test_the_flag_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ramet serve --batch-invariant` says so, and refuses a model that cannot keep it."""
    monkeypatch.setattr("ramet.server.serve", lambda *_: None)
    asked = ["serve", "--device", "cpu", "--dtype", "float32", "--cache-bytes", str(1 << 24), "--batch-invariant"]
    result = CliRunner().invoke(cli.main, [*asked, "--model", str(checkpoint("qwen3_5"))])
    assert result.exit_code == 0
    assert any(line.split() == ["batch_invariant", "True"] for line in result.stderr.splitlines())
    result = CliRunner().invoke(cli.main, [*asked, "--model", str(checkpoint("qwen3"))])  # whose heads have 24
    assert result.exit_code == 1
    assert "cannot be batch-invariant; load without batch_invariant" in result.stderr
