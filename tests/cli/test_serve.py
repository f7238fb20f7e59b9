"""`ramet serve`: what the engine and the server are told, and what is told to the person."""

from __future__ import annotations

import contextlib
import datetime
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine

from ramet import cli
from ramet.cli.peer_values import PEERS, Peer
from ramet.errors import CheckpointError
from ramet.server import Listener, ServerSettings, Signals
from ramet.server.signals import HANDLED

BY_LOAD = {"chunk_size": "auto"}  # what serving alone has by default


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ServerSettings]]:
    """What `ramet.server.serve` was called with."""
    calls: list[tuple[Any, ServerSettings]] = []

    def called(engine: Any, settings: ServerSettings, listener: Listener, signals: Signals) -> None:
        calls.append((engine, settings))

    def opened(settings: ServerSettings) -> Listener:
        listener = open_listener(settings.model_copy(update={"port": 0, "host": "127.0.0.1"}))
        monkeypatch.setattr(Listener, "url", f"http://{settings.host}:{settings.port}")
        return listener

    open_listener = Listener.open
    monkeypatch.setattr("ramet.server.serve", called)
    monkeypatch.setattr("ramet.server.Loading", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(Listener, "open", opened)  # of the settings' address, which others may have
    return calls


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["serve", *arguments], catch_exceptions=False)


def test_defaults_are_the_settings_own(cli_engine: CliEngine, served: list[Any]) -> None:
    result = serve()
    assert (result.exit_code, result.stdout) == (0, "")
    assert served == [(cli_engine, ServerSettings())]
    assert (cli_engine.source, cli_engine.options, cli_engine.closed) == ("smollm2", BY_LOAD, True)
    assert "serving stub, jev-latest at http://127.0.0.1:8000" in result.stderr
    assert any(line.split() == ["device", "none"] for line in result.stderr.splitlines())
    assert "no --api-key" not in result.stderr


def test_options(cli_engine: CliEngine, served: list[Any]) -> None:
    arguments = "--host ::1 --port 0 --alias a --alias b=a --max-body-bytes 2048 --drain-s 3 --body-timeout-s 2.5 "
    arguments += "--head-timeout-s 1.5 --send-timeout-s 4 --max-connections 7 "
    arguments += (
        "--release-date 2026-01-02 --no-access-log --api-key k -m dir --name big --method letters --op norm=cpu"
    )
    serve(*arguments.split())
    _, settings = served[0]
    assert settings.model_dump(exclude={"api_key"}) == {
        "host": "::1",
        "port": 0,
        "aliases": {"jev-latest": None, "a": None, "b": "a"},
        "max_body_bytes": 2048,
        "drain_s": 3,
        "body_timeout_s": 2.5,
        "head_timeout_s": 1.5,
        "send_timeout_s": 4.0,
        "max_connections": 7,
        "release_date": datetime.date(2026, 1, 2),
        "max_logprobs": 20,
        "access_log": False,
    }
    assert [key.get_secret_value() for key in settings.api_key] == ["k"]
    assert cli_engine.source == "dir"
    assert cli_engine.options == BY_LOAD | {"name": "big", "method": "letters", "ops": {"norm": "cpu"}}


PAPER = (
    "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "16", "--max-num-batched-tokens", "8192",
    "--max-logprobs", "32", "--enable-prefix-caching",
    "--diffusion-config", '{"canvas_length": 64, "single_pass_reads": true}',
)  # fmt: skip


def test_a_size_of_chunks_that_is_given(cli_engine: CliEngine, served: list[Any]) -> None:
    for size in ("block", "8"):
        assert serve("--chunk-size", size).exit_code == 0
        assert cli_engine.options == {"chunk_size": size}


def test_a_serve_line_of_vllm(cli_engine: CliEngine, served: list[Any]) -> None:
    result = serve("google/diffusiongemma-26B-A4B-it", *PAPER)
    assert result.exit_code == 0, result.stderr
    assert cli_engine.source == "google/diffusiongemma-26B-A4B-it"
    assert cli_engine.options == BY_LOAD | {
        "dtype": "bfloat16", "max_model_len": 4096, "max_round_requests": 16, "max_round_tokens": 8192,
        "prefix_caching": True, "canvas_length": 64, "single_pass_reads": True,
    }  # fmt: skip
    assert served[0][1].max_logprobs == 32


@pytest.mark.parametrize(
    ("theirs", "ours", "setting", "value"),
    [
        (("--max-num-seqs", "3"), ("--max-round-requests", "3"), "max_round_requests", 3),
        (("--max-num-batched-tokens", "99"), ("--max-round-tokens", "99"), "max_round_tokens", 99),
        (("--max-running-requests", "3"), ("--max-round-requests", "3"), "max_round_requests", 3),
        (("--context-length", "99"), ("--max-model-len", "99"), "max_model_len", 99),
        (("--max_num_seqs=99",), ("--max-round-requests", "99"), "max_round_requests", 99),
        (("--served-model-name", "big"), ("--name", "big"), "name", "big"),
        (("--disable-radix-cache",), ("--no-prefix-caching",), "prefix_caching", False),
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
        assert cli_engine.options == BY_LOAD | {setting: value}
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
    assert set(ServerSettings.model_fields) == {*module.SETTINGS, "aliases", "api_key"}


def keys(settings: ServerSettings) -> list[str]:
    return [key.get_secret_value() for key in settings.api_key]


def test_the_key_from_the_environment(
    cli_engine: CliEngine, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMET_API_KEY", "sec ret")
    result = serve("--host", "0.0.0.0")
    assert keys(served[0][1]) == ["sec ret"]
    assert "sec ret" not in result.stderr
    assert "no --api-key" not in result.stderr
    assert serve("--api-key", "other", "--api-key", "third").exit_code == 0
    assert keys(served[1][1]) == ["other", "third"]


def test_keys_of_a_file_are_further_ones(
    cli_engine: CliEngine, served: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\ntwo\n", encoding="utf-8")
    monkeypatch.setenv("RAMET_API_KEY", "zero")
    assert serve("--api-key-file", str(file)).exit_code == 0
    assert keys(served[0][1]) == ["zero", "one", "two"]


@pytest.mark.parametrize("value", ["", " ", "key\n"])
def test_a_variable_that_guards_nothing_is_refused(
    cli_engine: CliEngine, served: list[Any], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("RAMET_API_KEY", value)
    result = serve()
    assert (result.exit_code, cli_engine.n_loads, served) == (2, 0, [])
    assert "RAMET_API_KEY: the key " in result.stderr
    assert "give it a key, or unset it" in result.stderr


def test_a_file_without_keys_is_refused(cli_engine: CliEngine, served: list[Any], tmp_path: Path) -> None:
    result = serve("--api-key-file", str(tmp_path / "none"))
    assert (result.exit_code, cli_engine.n_loads, served) == (2, 0, [])
    assert "cannot be read: No such file" in result.stderr


def test_several_served_names(cli_engine: CliEngine, served: list[Any]) -> None:
    assert serve("dir", "--served-model-name", "a", "b", "b", "c", "--port", "0", "--alias", "d").exit_code == 0
    assert (cli_engine.source, cli_engine.options) == ("dir", BY_LOAD | {"name": "a"})
    assert served[0][1].aliases == {"jev-latest": None, "d": None, "b": None, "c": None}
    result = serve("--name", "x", "--served-model-name", "a", "b")
    assert result.exit_code == 2
    assert "two names of one thing" in result.stderr


@pytest.mark.parametrize(("told", "meant"), [("half", None), ("float16", None), ("float", "float32")])
def test_dtypes_as_vllm_says_them(cli_engine: CliEngine, served: list[Any], told: str, meant: str | None) -> None:
    result = serve("--dtype", told)
    assert cli_engine.options == BY_LOAD | {"dtype": meant or "auto"}
    assert f"--dtype {told}: means {meant or 'auto'} here" in result.stderr


@pytest.mark.parametrize(
    ("told", "meant"), [("auto", None), ("-1", None), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("77", 77)]
)
def test_lengths_as_vllm_says_them(cli_engine: CliEngine, served: list[Any], told: str, meant: int | None) -> None:
    result = serve("--max-model-len", told)
    assert cli_engine.options == BY_LOAD | ({} if meant is None else {"max_model_len": meant})
    assert ("--max-model-len auto: " in result.stderr) == (meant is None)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.flags[0])
def test_options_of_peers(cli_engine: CliEngine, served: list[Any], peer: Peer) -> None:
    """Each is taken with a note, or refused with a remedy, before a model is loaded; none is ignored."""
    taken = ("x",) if peer.taken is None else peer.taken
    for flag in peer.flags:
        for words in [(flag,)] if peer.is_switch and peer.taken is None else [(flag, value) for value in taken]:
            result = serve(*words)
            assert (result.exit_code, cli_engine.options) == (0, BY_LOAD), result.stderr
            assert f": {peer.here}\n" in result.stderr
        if peer.taken is not None:
            cli_engine.n_loads = 0
            result = serve(*((flag,) if peer.is_switch else (flag, "another")))
            assert (result.exit_code, cli_engine.n_loads) == (2, 0)
            assert result.stderr.endswith(f"is not taken: {peer.remedy}\n")
            assert peer.flags[0] in result.stderr
    if peer.is_switch:
        assert serve(f"--no-{peer.flags[0][2:]}").exit_code == 0


def test_what_is_the_same_number_is_taken(cli_engine: CliEngine, served: list[Any]) -> None:
    assert serve("--cpu-offload-gb", "0.0", "-tp=1").exit_code == 0
    assert serve("-tp", "2").exit_code == 2


def test_an_open_address_without_a_key_is_told(cli_engine: CliEngine, served: list[Any]) -> None:
    assert "no --api-key: whoever reaches this address can ask" in serve("--host", "0.0.0.0").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "70000"), "--port"),
        (("--release-date", "yesterday"), "--release-date: "),
        (("--body-timeout-s", "0"), "--body-timeout-s: "),
        (("--head-timeout-s", "0"), "--head-timeout-s: "),
        (("--send-timeout-s", "-1"), "--send-timeout-s: "),
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


def test_a_taken_port_ends_the_start_before_the_model_is_loaded(cli_engine: CliEngine) -> None:
    with Listener.open(ServerSettings(port=0)) as other:
        where = f"127.0.0.1:{other.port}"
        result = serve("--port", str(other.port))
    assert (result.exit_code, cli_engine.n_loads) == (1, 0)
    remedy = "stop what listens there, or give another --port (0 takes a free one)"
    assert result.stderr == f"Error: {where} is taken: {remedy}\n"


def test_what_a_client_is_told_while_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, cli_engine: CliEngine
) -> None:
    told: list[httpx2.Response] = []
    addresses: list[str] = []

    def load(source: str, **options: Any) -> CliEngine:
        with httpx2.Client(base_url=addresses[0]) as client:
            told.extend([client.get("/health"), client.head("/"), client.post("/v1/systemone", content=b"x" * 300_000)])
            told.append(client.post("/v1/chat/completions", json={}))
        return cli_engine.load(source, **options)

    def served(engine: Any, settings: ServerSettings, listener: Listener, signals: Signals) -> None:
        addresses.append(f"{engine.name} at {listener.url}")

    def opened(settings: ServerSettings) -> Listener:
        addresses.append((listener := open_listener(settings)).url)
        return listener

    open_listener = Listener.open
    monkeypatch.setattr(Listener, "open", opened)
    monkeypatch.setattr("ramet.cli.load_engine", load)
    monkeypatch.setattr("ramet.server.serve", served)
    result = serve("--port", "0", "--name", "ours")
    assert result.exit_code == 0, result.stderr
    assert [reply.status_code for reply in told] == [503] * 4
    assert (told[0].json()["status"], told[0].json()["model"]) == ("loading", "ours")
    assert told[2].json()["detail"]["error_type"] == "unavailable"
    assert told[3].json()["error"]["code"] == "unavailable"
    assert {reply.headers["retry-after"] for reply in told} == {"1"}
    assert addresses[1] == f"stub at {addresses[0]}"  # the same port, which 0 chose, and it is told
    assert f"({addresses[0]} answers 503 until it is loaded)" in result.stderr
    assert f"serving stub, jev-latest at {addresses[0]}" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_start(monkeypatch: pytest.MonkeyPatch, served: list[Any], number: int) -> None:
    def load(source: str, **options: Any) -> None:
        signal.raise_signal(number)

    before = [signal.getsignal(each) for each in HANDLED]
    monkeypatch.setattr("ramet.cli.load_engine", load)
    result = serve()
    assert (result.exit_code, served) == (130 if number == signal.SIGINT else 0, [])
    assert "Aborted" not in result.stderr
    assert [signal.getsignal(each) for each in HANDLED] == before
