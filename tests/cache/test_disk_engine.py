"""An engine and the commands whose --disk-cache is no good: told once, computed afresh, answered right."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixtures.tiny_engine import checkpoint, tiny_engine
from oracles.answers import assert_close

from ramet import cli
from ramet.cache import directory
from ramet.decision import Decision
from ramet.errors import InvalidRequest

STATE = "the state of the system and the answer to it " * 12
ASKED = {"late": {"type": "noul", "instructions": "Is it late?"}}
FAMILY = pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])


def decide(family: str, **settings: Any) -> tuple[Decision, dict[str, float]]:
    """An answer, and the engine's figures after it."""
    with tiny_engine(family, **settings) as engine:
        return engine.decide(state=STATE, questions=ASKED), engine.stats()


def fails(error: Exception) -> Callable[..., Any]:
    def failing(*args: object, **settings: object) -> None:
        raise error

    return failing


def a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_text("mine")


def below_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.rmdir()
    place.parent.write_text("mine")


def read_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says it of a mount, which root cannot write to either."""
    place.mkdir()
    monkeypatch.setattr(tempfile, "TemporaryDirectory", fails(OSError(errno.EROFS, os.strerror(errno.EROFS))))


def full(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "write_entry", fails(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))


@FAMILY
@pytest.mark.parametrize("spoil", [a_file, below_a_file, read_only, full])
def test_a_directory_that_takes_nothing(
    family: str,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every state goes to disk as the engine closes; the next one finds none, and answers as if it had no directory."""
    (tmp_path / "a").mkdir()
    place = tmp_path / "a" / "states"
    expected, _ = decide(family)
    spoil(place, monkeypatch)
    for _ in range(2):
        caplog.clear()
        found, stats = decide(family, disk_cache=place)
        assert found.usage.x_cached_tokens == 0
        assert stats["failed_rounds_total"] == 0
        assert_close(found.answers, expected.answers, atol=0)
        told = [r for r in caplog.records if r.levelname == "WARNING"]
        assert 1 <= len(told) <= 2
        assert f"cannot write to {place}" in told[0].message
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert all(file.read_text() == "mine" or file.name == "identity.json" for file in files)


@FAMILY
def test_what_is_kept_is_found_and_what_is_spoilt_is_not(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = decide(family, disk_cache=tmp_path)
    again, stats = decide(family, disk_cache=tmp_path)
    assert again.usage.x_cached_tokens > 100
    assert stats["cache_disk_tier_hits_total"] > 0
    assert_close(again.answers, first.answers)
    files = list(tmp_path.rglob("*.safetensors"))
    for n, file in enumerate(files):
        data = file.read_bytes()
        file.write_bytes((data[:100], data[: len(data) // 2], b"", bytes(len(data)))[n % 4])
    assert not caplog.records
    spoilt, stats = decide(family, disk_cache=tmp_path)
    assert spoilt.usage.x_cached_tokens == 0
    assert stats["cache_disk_tier_damaged_total"] > 0
    assert_close(spoilt.answers, first.answers, atol=0)
    assert any("is damaged and is removed" in record.message for record in caplog.records)


def test_budgets_that_are_none() -> None:
    for name, value in (("disk_cache_bytes", 0), ("memory_cache_bytes", -1), ("cache_bytes", 0)):
        with pytest.raises(InvalidRequest, match=f"{name}: must be at least"):
            tiny_engine(**{name: value})


def command(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("name", ["decide", "serve", "run"])
def test_a_file_is_refused_before_a_model_is_loaded(name: str, tmp_path: Path) -> None:
    place = tmp_path / "states"
    place.write_text("mine")
    rows = {"run": (str(place), "-o", str(tmp_path / "out.jsonl"))}.get(name, ())
    result = command(name, *rows, "--model", "none/such", "--disk-cache", str(place))
    assert result.exit_code == 2
    assert "--disk-cache" in result.stderr
    assert "is a file" in result.stderr
    assert place.read_text() == "mine"


@pytest.mark.parametrize("spoil", [read_only, full])
def test_decide_answers_and_warns(
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spoil(tmp_path / "states", monkeypatch)
    asked = ["decide", "--json", "--state", STATE, "--noul", "late=Is it late?", "--dtype", "float32"]
    asked += ["--device", "cpu", "--model", str(checkpoint("qwen3_5")), "--cache-bytes", str(1 << 24)]
    plain, kept = command(*asked), command(*asked, "--disk-cache", str(tmp_path / "states"))
    assert (plain.exit_code, kept.exit_code) == (0, 0)
    assert_close(json.loads(kept.stdout)["answers"], json.loads(plain.stdout)["answers"], atol=0)
    assert f"cannot write to {tmp_path / 'states'}" in caplog.text
