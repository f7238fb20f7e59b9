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
        "access_log": False,
    }
    assert settings.api_key.get_secret_value() == "k"
    assert cli_engine.source == "dir"
    assert cli_engine.options == {"name": "big", "method": "letters", "ops": {"norm": "cpu"}}
    assert "http://[::1]:(a free port, told below)" in result.stderr


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
