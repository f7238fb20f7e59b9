"""`ramet decide`: where the request comes from, what the engine gets, what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import Serve
from fakes.cli_engine import CliEngine
from fakes.stub_engine import StubEngine
from fixtures.import_graph import ROOT

from ramet import cli
from ramet.decision import Decision
from ramet.server import ServerSettings

REQUEST = {"state": "a ticket", "questions": {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}}
ASK = ("--state", "a ticket", "--noul", "urgent=Is it urgent?")


def decide(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["decide", *arguments], input=stdin, catch_exceptions=False)


def test_flags_file_and_stdin_ask_the_same(cli_engine: CliEngine, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST))
    state = tmp_path / "state.txt"
    state.write_text("a ticket")
    decide(*ASK)
    decide("--state-file", str(state), "--noul", "urgent=Is it urgent?")
    decide(str(path))
    decide("-", stdin=json.dumps(REQUEST))
    asked = [request.model_dump() for request in cli_engine.received]
    assert len(asked) == 4
    assert all(request == asked[0] for request in asked)
    assert asked[0]["state"] == "a ticket"
    assert cli_engine.closed


def test_the_example_prints_a_table(cli_engine: CliEngine) -> None:
    result = decide(str(ROOT / "examples" / "ticket.json"))
    assert (result.exit_code, result.stderr) == (0, "")
    types = {question.type for question in cli_engine.received[0].questions.values()}
    assert types == {"noul", "choice", "score"}
    for word in (*cli_engine.received[0].questions, "a refund", "yes", "very upset", "█", "tokens", " ms", "stub"):
        assert word in result.stdout


def test_json_is_the_servers_answer(cli_engine: CliEngine) -> None:
    decision = Decision.model_validate_json(decide(*ASK, "--json").stdout)
    assert decision.answers.keys() == {"urgent"}
    assert decision.x_timing is not None


def test_engine_options_reach_the_engine(cli_engine: CliEngine) -> None:
    decide(*ASK)
    assert (cli_engine.source, cli_engine.options) == ("smollm2", {})
    decide(*ASK, "-m", "some/dir", "--dtype", "float32", "--max-queue", "5", "--cache-bytes", "9")
    assert cli_engine.source == "some/dir"
    assert cli_engine.options == {"dtype": "float32", "max_queue": 5, "cache_bytes": 9}


def test_readout_options_are_put_over_the_files(cli_engine: CliEngine, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST | {"x_debias": 2, "x_confidence": "vllm", "model": "jev-latest"}))
    decide(str(path), "--debias", "3", "--temperature", "noul=2", "--method", "letters", "--joint", "--seed", "5")
    request = cli_engine.received[0]
    assert (request.x_debias, request.x_confidence, request.x_method, request.x_seed) == (3, "vllm", "letters", 5)
    assert request.x_temperature == {"noul": 2.0}
    assert request.joint
    assert request.model == "smollm2"


def test_an_ignored_field_is_told(cli_engine: CliEngine) -> None:
    result = decide("-", stdin=json.dumps(REQUEST | {"user": "u"}))
    assert result.stderr == "ignored: 'user' means nothing in a request\n"
    assert result.exit_code == 0


@pytest.mark.parametrize(("fields", "message"), [({"images": ["x"]}, "images: holds media"),
                                                 ({"samples": 4}, "did you mean x_samples?")])  # fmt: skip
def test_a_field_that_would_change_the_answer_is_refused(
    cli_engine: CliEngine, fields: dict[str, Any], message: str
) -> None:
    result = decide("-", stdin=json.dumps(REQUEST | fields))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not cli_engine.received


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "a request is a JSON object"),
        (b'{"state": "\xff"}', "UTF-8"),
        ('{"state": NaN}', "NaN"),
        ("[" * 5000, "nested"),
        (json.dumps(REQUEST | {"questions": {}}), "questions"),
        (json.dumps(REQUEST | {"questions": {"a": {"type": "verdict"}}}), "questions.a.type"),
        (json.dumps({"state": "s"}), "questions"),
        ('{"state": "\\ud800", "questions": {"a": {"type": "noul", "instructions": "x"}}}', "surrogate"),
        ('{"state": "a", "state": "b"}', "state"),
    ],
)
def test_a_faulty_request_loads_no_model(cli_engine: CliEngine, stdin: str | bytes, message: str) -> None:
    result = decide("-", stdin=stdin)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert cli_engine.n_loads == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to decide"),
        (("--state", "s"), "nothing to decide"),
        (("--noul", "n=x"), "nothing to decide"),
        (("-", "--noul", "n=x"), "comes from one place"),
        (("-", "--state", ""), "comes from one place"),
        (("no-such-file.json",), "No such file"),
        ((*ASK, "--url", "x", "--dtype", "float32"), "--dtype is the server's to say"),
        ((*ASK, "--url", "x", "--max-queue", "3"), "--max-queue is the server's to say"),
        ((*ASK, "--api-key", "k"), "no effect without --url"),
        ((*ASK, "--debias", "17"), "--debias"),
        ((*ASK, "--temperature", "cold"), "--temperature"),
    ],
)
def test_usage_faults(cli_engine: CliEngine, arguments: tuple[str, ...], message: str) -> None:
    result = decide(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert cli_engine.n_loads == 0


def test_a_state_file_must_be_utf8(cli_engine: CliEngine, tmp_path: Path) -> None:
    path = tmp_path / "state.txt"
    path.write_bytes(b"caf\xe9")
    result = decide("--state-file", str(path), "--noul", "n=x")
    assert (result.exit_code, cli_engine.n_loads) == (2, 0)
    assert result.stderr.startswith("Error: state: ")


class TestUrl:
    """Asking a server."""

    def test_the_same_answers(self, cli_engine: CliEngine, serve: Serve) -> None:
        server = serve(StubEngine())
        there = Decision.model_validate_json(decide(*ASK, "--json", "--url", server.url).stdout)
        assert cli_engine.n_loads == 0
        here = Decision.model_validate_json(decide(*ASK, "--json").stdout)
        assert there.answers == here.answers

    def test_the_table_and_the_options(self, serve: Serve) -> None:
        engine = StubEngine()
        result = decide(*ASK, "--url", serve(engine).url + "/v1/", "-m", "stub", "--debias", "4")
        assert "urgent" in result.stdout
        assert engine.received[0].x_debias == 4

    def test_the_key(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        url = serve(StubEngine(), ServerSettings(api_key="secret")).url  # type: ignore[arg-type]
        assert decide(*ASK, "--url", url).exit_code == 2
        assert decide(*ASK, "--url", url, "--api-key", "secret").exit_code == 0
        monkeypatch.setenv("RAMET_API_KEY", "secret")
        assert decide(*ASK, "--url", url).exit_code == 0

    def test_a_wrong_model_is_the_callers_fault(self, serve: Serve) -> None:
        result = decide(*ASK, "--url", serve(StubEngine()).url, "-m", "gpt")
        assert result.exit_code == 2
        assert "answered 404" in result.stderr
        assert "gpt" in result.stderr

    def test_a_fault_of_the_server(self, serve: Serve) -> None:
        result = decide(*ASK, "--url", serve(StubEngine(failure=RuntimeError("bug"))).url)
        assert result.exit_code == 1
        assert "answered 500" in result.stderr

    def test_nobody_there(self) -> None:
        result = decide(*ASK, "--url", "http://127.0.0.1:1")
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: http://127.0.0.1:1/v1/systemone: ")
