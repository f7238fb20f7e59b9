"""Settings that no machine has memory, threads or time for: each is refused with its limit before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click
import pytest
from attacks.bounded import bounded
from click.testing import CliRunner
from pydantic import ValidationError

from ramet import cli
from ramet.cli import bench, run
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest
from ramet.machine import allowance
from ramet.server.settings import ServerSettings

HUGE = 10**15
ENGINE = {each.name: each.type for each in fields(EngineSettings)}
COUNTS = [name for name, kind in ENGINE.items() if "int" in str(kind).split(" | ") or kind is int]
SERVER = [name for name, field in ServerSettings.model_fields.items() if field.annotation in (int, float, int | None)]
LONG = pytest.param(10**5000, id="long")  # which Python does not write
DIGITS = pytest.param("9" * 5000, id="digits")  # nor read
FLAGS = [f"--{name.replace('_', '-')}" for name in COUNTS]
NOWHERE = ["-m", "/nowhere"]  # which would be the error, were it looked for first
NEEDED = {"disk_cache_bytes": {"disk_cache": "kept"}}


def refused(**given: Any) -> InvalidRequest:
    with bounded(200), pytest.raises(InvalidRequest) as caught:
        EngineSettings(device="cpu", **given).resolved()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    return caught.value


def test_these_are_the_numbers_of_an_engine() -> None:
    assert set(COUNTS) >= {
        "cache_bytes",
        "memory_cache_bytes",
        "threads",
        "max_round_tokens",
        "block_size",
        "max_queue",
    }
    assert len(COUNTS) == 14
    assert set(SERVER) >= {"port", "max_body_bytes", "body_timeout_s", "max_logprobs", "drain_s", "max_connections"}


@pytest.mark.parametrize("value", [HUGE, -1, 0, float("nan"), float("inf"), 1e15, LONG, DIGITS])
@pytest.mark.parametrize("name", COUNTS)
def test_a_number_of_an_engine_out_of_range(name: str, value: Any, tmp_path: Any) -> None:
    if (name, value) == ("memory_cache_bytes", 0):
        return  # means none
    if name == "disk_cache_bytes" and value == HUGE:
        return  # a disk may grow, and what is kept goes by what is free
    error = refused(**{name: value}, **{key: str(tmp_path) for key in NEEDED.get(name, {})})
    assert error.field == name


@pytest.mark.parametrize("name", [n for n in COUNTS if n != "disk_cache_bytes"])
def test_the_limit_is_told(name: str) -> None:
    assert "must be at most " in refused(**{name: HUGE}).message


def test_memory_is_this_machines() -> None:
    here = allowance().n_bytes
    assert str(here) in refused(cache_bytes=here + 1).message
    assert f"at most {here - 2**20}, " in refused(cache_bytes=2**20, memory_cache_bytes=here).message
    EngineSettings(device="cpu", cache_bytes=2**20, memory_cache_bytes=here - 2**20).resolved()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 2])
def test_a_confidence_out_of_range(value: float) -> None:
    assert refused(confidence_threshold=value).field == "confidence_threshold"


@pytest.mark.parametrize("value", ["9" * 5000, "1" * 10, "nan", "-1"], ids=["digits", "many", "nan", "less"])
def test_chunk_sizes_out_of_range(value: str) -> None:
    assert refused(chunk_size=value).field == "chunk_size"


TIERS = {
    "many": "1:2," * 10**6, "digits": "9" * 5000 + ":8", "large": f"1:{HUGE}", "none": "0:8", "words": "x" * 10**6,
}  # fmt: skip


@pytest.mark.parametrize("name", TIERS)
def test_chunk_tiers_out_of_range(name: str) -> None:
    assert refused(chunk_tiers=TIERS[name]).field == "chunk_tiers"


@pytest.mark.parametrize("value", [HUGE, -2, float("nan"), float("inf"), LONG])
@pytest.mark.parametrize("name", SERVER)
def test_a_number_of_a_server_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ServerSettings(**{name: value})
    assert caught.value.errors()[0]["loc"] == (name,)


def said(arguments: list[str]) -> str:
    """The one line that a command ends with, its usage aside."""
    with bounded(300):
        result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    lines = [line for line in result.output.splitlines() if line and not line.startswith(("Usage:", "Try "))]
    assert len(lines) == 1, result.output
    return lines[0]


@pytest.mark.parametrize("value", [str(HUGE), "-2", "0.5", "nan"])
@pytest.mark.parametrize("flag", FLAGS)
def test_on_the_command_line(flag: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (flag, value) == ("--disk-cache-bytes", str(HUGE)):
        return
    line = said(["decide", *NOWHERE, flag, value, "--state", "x", "--choice", "a=b?: c|d"])
    assert flag in line or flag[2:].replace("-", "_") in line


@pytest.mark.parametrize("value", [str(HUGE), "-2", "nan", "inf"])
@pytest.mark.parametrize("name", SERVER)
def test_a_servers_on_the_command_line(name: str, value: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert flag in said(["serve", *NOWHERE, flag, value])


def numbers(command: click.Command) -> list[tuple[str, click.ParamType[Any]]]:
    kinds = (click.types.IntRange, click.types.FloatRange)
    return [(p.opts[0], p.type) for p in command.params if isinstance(p.type, kinds)]


def counted() -> Iterator[tuple[str, str]]:
    """Benches, and their options that count something and are no engine's."""
    assert isinstance(bench.command, click.Group)
    for name, command in bench.command.commands.items():
        yield from ((name, flag) for flag, _ in numbers(command) if flag not in FLAGS)


@pytest.mark.parametrize(("name", "flag"), [*counted(), ("elastic", "--clients"), ("reads", "--prompts")])
@pytest.mark.parametrize("value", [str(HUGE), "-1", "nan", DIGITS])
def test_counts_of_benches(name: str, flag: str, value: str) -> None:
    if flag in ("--budget", "--trace", "--simulated-trace", "--price-per-month") and value == str(HUGE):
        return  # seconds and money: nothing is made of them
    assert flag in said(["bench", name, flag, value])


@pytest.mark.parametrize(
    "shapes", ["1x1x1000000000000000", "9999999x9999999x9", "400x4x60@100000000", "9" * 5000, "0x1x1"]
)
def test_shapes_of_benches(shapes: str) -> None:
    assert "shapes" in said(["bench", "decisions", "--shapes", shapes])


def test_rows_at_a_time(tmp_path: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    for value in ("100000000", "0", "nan"):
        assert "--parallel" in said(["run", str(rows), "-o", str(tmp_path / "out.jsonl"), "--parallel", value])
    assert "--parallel" in {flag for flag, _ in numbers(run.command)}


@pytest.mark.parametrize("flag", ["--threshold", "--fail-under"])
def test_a_share_is_a_number(flag: str, tmp_path: Any) -> None:
    """NaN is neither below nor above: `--fail-under nan` would let everything pass."""
    (tmp_path / "a").write_text("")
    assert flag in said(["agree", str(tmp_path / "a"), str(tmp_path / "a"), flag, "nan"])
