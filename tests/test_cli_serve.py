"""`ramet serve`: what the engine and the server are told, and what is told to the person."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from cli_engine import CliEngine
from click.testing import CliRunner, Result

from ramet import cli
from ramet.errors import CheckpointError
from ramet.server import ServerSettings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ServerSettings]]:
    """What `ramet.server.serve` was called with."""
    calls: list[tuple[Any, ServerSettings]] = []
    monkeypatch.setattr("ramet.server.serve", lambda engine, settings: calls.append((engine, settings)))
    return calls


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["serve", *arguments], catch_exceptions=False)


def test_defaults_are_the_settings_own(cli_engine: CliEngine, served: list[Any]) -> None:
    result = serve()
    assert (result.exit_code, result.stdout) == (0, "")
    assert served == [(cli_engine, ServerSettings())]
    assert (cli_engine.source, cli_engine.options, cli_engine.closed) == ("smollm2", {}, True)
    assert "serving stub, jev-latest at http://127.0.0.1:8000" in result.stderr
    assert "  device  none" in result.stderr
    assert "no --api-key" not in result.stderr


def test_options(cli_engine: CliEngine, served: list[Any]) -> None:
    arguments = "--host ::1 --port 0 --alias a --alias b=a --max-body-bytes 2048 --drain-s 3 --body-timeout-s 2.5 "
    arguments += (
        "--release-date 2026-01-02 --no-access-log --api-key k -m dir --name big --method letters --op norm=cpu"
    )
    result = serve(*arguments.split())
    _, settings = served[0]
    assert settings.model_dump(exclude={"api_key"}) == {
        "host": "::1",
        "port": 0,
        "aliases": {"jev-latest": None, "a": None, "b": "a"},
        "max_body_bytes": 2048,
        "drain_s": 3,
        "body_timeout_s": 2.5,
        "release_date": datetime.date(2026, 1, 2),
        "max_logprobs": 20,
        "access_log": False,
    }
    assert settings.api_key.get_secret_value() == "k"
    assert cli_engine.source == "dir"
    assert cli_engine.options == {"name": "big", "method": "letters", "ops": {"norm": "cpu"}}
    assert "http://[::1]:(a free port, told below)" in result.stderr


PAPER = (
    "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "16", "--max-num-batched-tokens", "8192",
    "--max-logprobs", "32", "--enable-prefix-caching",
    "--diffusion-config", '{"canvas_length": 64, "single_pass_reads": true}',
)  # fmt: skip


def test_a_serve_line_of_vllm(cli_engine: CliEngine, served: list[Any]) -> None:
    result = serve("google/diffusiongemma-26B-A4B-it", *PAPER)
    assert result.exit_code == 0, result.stderr
    assert cli_engine.source == "google/diffusiongemma-26B-A4B-it"
    assert cli_engine.options == {
        "dtype": "bfloat16", "max_model_len": 4096, "max_round_requests": 16, "max_round_tokens": 8192,
        "prefix_caching": True, "canvas_length": 64, "single_pass_reads": True,
    }  # fmt: skip
    assert served[0][1].max_logprobs == 32


@pytest.mark.parametrize(
    ("theirs", "ours", "setting", "value"),
    [
        (("--max-num-seqs", "3"), ("--max-round-requests", "3"), "max_round_requests", 3),
        (("--max-num-batched-tokens", "99"), ("--max-round-tokens", "99"), "max_round_tokens", 99),
        (("--served-model-name", "big"), ("--name", "big"), "name", "big"),
        (("--no-enable-prefix-caching",), ("--no-prefix-caching",), "prefix_caching", False),
        (("-dc", '{"canvas_length": 8}'), ("--canvas-length", "8"), "canvas_length", 8),
        (("-dc", '{"max_denoising_steps": 8}'), ("--max-denoising-steps", "8"), "max_denoising_steps", 8),
        (("-dc", '{"single_pass_reads": false}'), ("--no-single-pass-reads",), "single_pass_reads", False),
        (("--dllm-block-length", "8"), ("--block-size", "8"), "block_size", 8),
        (("--dllm-denoising-steps", "8"), ("--denoising-steps", "8"), "denoising_steps", 8),
        (("--dllm-confidence-threshold", "0.8"), ("--confidence-threshold", "0.8"), "confidence_threshold", 0.8),
        (
            ("--dllm-unmasking-strategy", "sequential"),
            ("--unmasking-strategy", "sequential"),
            "unmasking_strategy",
            "sequential",
        ),
    ],
)
def test_two_names_of_one_thing(
    cli_engine: CliEngine, served: list[Any], theirs: tuple[str, ...], ours: tuple[str, ...], setting: str, value: Any
) -> None:
    for arguments in (theirs, ours, (*theirs, *ours)):
        assert serve(*arguments).exit_code == 0
        assert cli_engine.options == {setting: value}
    changed = {"3": "4", "8": "9", "99": "98", "0.8": "0.9", "big": "small", "sequential": "entropy_bounded"}
    other = tuple(changed.get(each, each) for each in ours)
    if other == ours:
        other = (ours[0].replace("--no-", "--"),)
    cli_engine.n_loads = 0
    result = serve(*theirs, *other)
    assert (result.exit_code, cli_engine.n_loads) == (2, 0)
    assert "two names of one thing" in result.stderr


def test_the_model_is_named_once(cli_engine: CliEngine, served: list[Any]) -> None:
    assert serve("dir").exit_code == serve("dir", "-m", "dir").exit_code == 0
    assert cli_engine.source == "dir"
    result = serve("dir", "-m", "smollm2")
    assert result.exit_code == 2
    assert "the model is dir and --model says smollm2" in result.stderr


def test_every_setting_of_the_server_has_its_option() -> None:
    from ramet.cli import serve as module

    options = {parameter.name for parameter in module.command.params}
    assert set(ServerSettings.model_fields) <= options
    assert set(ServerSettings.model_fields) == {*module.SETTINGS, "aliases", "access_log"}


def test_the_key_from_the_environment(
    cli_engine: CliEngine, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMET_API_KEY", "secret")
    result = serve("--host", "0.0.0.0")
    assert served[0][1].api_key.get_secret_value() == "secret"
    assert "secret" not in result.stderr
    assert "no --api-key" not in result.stderr


def test_an_open_address_without_a_key_is_told(cli_engine: CliEngine, served: list[Any]) -> None:
    assert "no --api-key: whoever reaches this address can ask" in serve("--host", "0.0.0.0").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "70000"), "--port"),
        (("--release-date", "yesterday"), "--release-date: "),
        (("--body-timeout-s", "0"), "--body-timeout-s: "),
        (("--api-key", ""), "--api-key: "),
        (("--alias", "a", "--alias", "a"), "comes twice"),
        (("--alias", "=b"), "is not NAME or NAME=MODEL"),
        (("--alias", "a="), "is not NAME or NAME=MODEL"),
        (("--op", "norm"), "is not OP=IMPLEMENTATION"),
        (("--max-logprobs", "-2"), "--max-logprobs"),
        (("--max-model-len", "0"), "--max-model-len"),
        (("-dc", "{"), "is no JSON"),
        (("-dc", "[1]"), "is no object"),
        (("-dc", '{"canvas": 1}'), "'canvas' is unknown; known are canvas_length, max_denoising_steps"),
        (("-dc", '{"canvas_length": true}'), "canvas_length is true; it must be a whole number from 1"),
        (("-dc", '{"canvas_length": 0}'), "canvas_length is 0; it must be a whole number from 1"),
        (("-dc", '{"single_pass_reads": 1}'), "single_pass_reads is 1; it must be true or false"),
    ],
)
def test_faults_before_a_model_is_loaded(
    cli_engine: CliEngine, served: list[Any], arguments: tuple[str, ...], message: str
) -> None:
    result = serve(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (cli_engine.n_loads, served) == (0, [])


def test_an_alias_that_leads_nowhere(cli_engine: CliEngine, served: list[Any]) -> None:
    result = serve("--alias", "a=gpt")
    assert result.exit_code == 2
    assert "--alias: alias 'a' stands for 'gpt'" in result.stderr
    assert (cli_engine.closed, served) == (True, [])


def test_a_model_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, served: list[Any]) -> None:
    def load(source: str, **options: Any) -> CliEngine:
        raise CheckpointError(f"{source}: no such directory")

    monkeypatch.setattr("ramet.cli.load_engine", load)
    result = serve("-m", "nowhere")
    assert (result.exit_code, served) == (1, [])
    assert "Error: nowhere: no such directory" in result.stderr
