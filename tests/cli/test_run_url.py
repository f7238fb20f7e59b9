"""`ramet run --url`: a running server's answers, with retries where it is busy, and what stops a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import Serve
from fakes.cli_engine import request, rows_in
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written
from pydantic import SecretStr

from ramet import cli
from ramet.cli import server_asker
from ramet.cli.remote import calibration_of
from ramet.cli.server_asker import _asked_for, _refusal
from ramet.rows import numbered_rows, read_rows
from ramet.server import ServerSettings


def run(rows: Path, out: Path, url: str, *arguments: str) -> Result:
    words = ["run", str(rows), "-o", str(out), "--url", url, *arguments]
    return CliRunner().invoke(cli.main, words, catch_exceptions=False)


def told(result: Result) -> str:
    return " ".join(result.stderr.split())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return rows_in(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_our_server_answers_what_an_engine_would(
    serve: Serve, rows: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fakes.cli_engine import CliEngine

    server = serve(StubEngine())
    result = run(rows, out, server.url, "--concurrency", "4")
    assert result.exit_code == 0, result.stderr
    engine = CliEngine()
    monkeypatch.setattr("ramet.cli.load_engine", engine.load)
    monkeypatch.setattr("ramet.cli.identified", CliEngine.identified)
    here = tmp_path / "here.jsonl"
    CliRunner().invoke(cli.main, ["run", str(rows), "-o", str(here)], catch_exceptions=False)
    heads: list[dict[str, Any]] = []
    found = [row for _, row in numbered_rows(out, heads=heads)]
    assert [row | {"request": ""} for row in found] == [row | {"request": ""} for row in read_rows(here)]
    (head,) = heads
    assert (head["server"], head["model"]) == (f"{server.url}/v1/systemone", "stub")
    assert head["model_hash"] == "0" * 32
    assert found[0]["request"].split("-")[1] == "0" * 32
    agreed = CliRunner().invoke(cli.main, ["agree", str(out), str(here), "--fail-under", "1"], catch_exceptions=False)
    assert agreed.exit_code == 0
    assert "server" in agreed.stdout
    assert "all 20 rows are there already" in run(rows, out, server.url).stderr
    assert "with other options" in told(run(rows, out, server.url, "--debias", "2"))


def test_rows_that_a_server_refuses(serve: Serve, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([request(0), request(1, x_debias=0), request(2, state="x" * 2_000_000), "{"]))
    assert run(path, out, serve(StubEngine()).url).exit_code == 0
    good, bad, long, broken = read_rows(out)
    assert "answers" in good
    assert (bad["error"]["field"], bad["error"]["type"]) == ("x_debias", "invalid_request")
    assert (long["error"]["type"], broken["error"]["type"]) == ("max_tokens_exceeded", "invalid_request")


def test_texts(serve: Serve, tmp_path: Path, out: Path) -> None:
    engine = StubEngine(text=StubWriter(kind="masks", reply=written("ab 🦩the cab")))
    path = tmp_path / "rows.jsonl"
    chat = {"id": 1, "messages": [{"role": "user", "content": "ab"}], "logprobs": True, "stream": True, "kept": "x"}
    path.write_text(json.dumps(chat) + "\n" + json.dumps({"prompt": "ab", "max_tokens": 3}))
    result = run(path, out, serve(engine).url)
    assert "ignored: 'stream', in 1 rows" in result.stderr
    first, second = read_rows(out)
    assert (first["text"], first["finish_reason"], first["kept"]) == ("ab 🦩the cab", "stop", "x")
    assert first["logprobs"]["content"][0]["token"] == "ab"
    assert "prompt_tokens_details" not in first["usage"]
    assert (second["finish_reason"], second["usage"]["completion_tokens"]) == ("length", 3)


def test_keys(serve: Serve, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(StubEngine(), ServerSettings(api_key=SecretStr("key")))
    result = run(rows, out, server.url)
    assert result.exit_code == 1
    assert "/v1/systemone answered 401" in told(result)
    assert list(read_rows(out)) == []
    monkeypatch.setenv("RAMET_API_KEY", "key")
    assert run(rows, out, server.url).exit_code == 0
    assert len(list(read_rows(out))) == 20
    assert "key" not in out.read_text().splitlines()[0]


def test_a_model_that_is_not_served(serve: Serve, rows: Path, out: Path) -> None:
    result = run(rows, out, serve(StubEngine()).url, "-m", "other")
    assert result.exit_code == 1
    assert "/v1/systemone answered 404" in told(result)
    assert "other" in told(result)


def test_options_without_effect(rows: Path, out: Path) -> None:
    assert "--dtype is the server's to say" in told(run(rows, out, "http://127.0.0.1:9", "--dtype", "float32"))
    words = ["run", str(rows), "-o", str(out), "--api-key", "x"]
    assert "--api-key has no effect without --url" in told(CliRunner().invoke(cli.main, words))


def test_a_server_that_is_not_there(rows: Path, out: Path) -> None:
    result = run(rows, out, "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9/v1/models: " in told(result)
    assert not out.exists()


Answer = tuple[int, dict[str, str], Any]
DECISION = {"model": "m", "answers": {"q": {"type": "noul", "noul": 0.5}}, "usage": {"input_tokens": 3}, "x_other": 1}


class Scripted(ThreadingHTTPServer):
    """Another's server: `answer` says what a row gets, by how many were asked before it. It has no list of models."""

    daemon_threads = True

    def __init__(self, answer: Callable[[int, dict[str, Any]], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.asked = answer, list[dict[str, Any]]()
        self.clients = set[Any]()  # their ports, one a connection
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is none."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_GET(self) -> None:
        self.respond(404, {}, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            n = len(self.server.asked)
            self.server.asked.append(body)
            self.server.clients.add(self.client_address)
        self.respond(*self.server.answer(n, body))

    def respond(self, status: int, headers: dict[str, str], content: Any) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Nothing is said."""


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Answer]], Scripted]]:
    servers: list[Scripted] = []

    def begin(answer: Callable[[int, dict[str, Any]], Answer]) -> Scripted:
        servers.append(server := Scripted(answer))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return server

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("parallel", [1, 3])
def test_connections_stay_open(scripted: Any, rows: Path, out: Path, parallel: int) -> None:
    server = scripted(lambda n, body: (200, {}, DECISION))
    assert run(rows, out, server.url, "--parallel", str(parallel)).exit_code == 0
    assert len(server.asked) == 20
    assert len(server.clients) <= parallel


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("headers", [{"retry-after-ms": "1"}, {"retry-after": "0"}, {}])
def test_a_busy_server_is_asked_again(
    scripted: Any, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(server_asker, "FIRST_WAIT_S", 0.001)
    server = scripted(lambda n, body: (200, {}, DECISION) if n % 3 else (status, headers, b"busy"))
    assert run(rows, out, server.url).exit_code == 0
    found = list(read_rows(out))
    assert [row["id"] for row in found] == [f"row-{n}" for n in range(20)]
    assert all(row["answers"] == DECISION["answers"] and row["x_other"] == 1 for row in found)
    assert 20 < len(server.asked) <= 40
    assert server.asked[0].keys() == {"state", "questions"}


def test_patience_ends_and_the_run_goes_on_later(
    scripted: Any, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_asker, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(server_asker, "PATIENCE_S", 0.1)
    server = scripted(lambda n, body: (200, {}, DECISION) if n < 5 else (503, {}, {"error": {"message": "down"}}))
    result = run(rows, out, server.url, "--parallel", "1")
    assert result.exit_code == 1
    assert "answered 503" in told(result)
    assert "no row was answered for" in told(result)
    assert len(list(read_rows(out))) == 5
    server.answer = lambda n, body: (200, {}, DECISION)
    assert "5 of 20 rows are there" in run(rows, out, server.url).stderr
    assert len(list(read_rows(out))) == 20
    other = scripted(lambda n, body: (200, {}, DECISION))
    assert "was made with another model" in told(run(rows, out, other.url))


def test_a_wait_that_is_too_long(scripted: Any, rows: Path, out: Path) -> None:
    server = scripted(lambda n, body: (429, {"retry-after": "86400"}, b"tomorrow"))
    assert run(rows, out, server.url).exit_code == 1


def test_what_is_no_decision(scripted: Any, rows: Path, out: Path) -> None:
    result = run(rows, out, scripted(lambda n, body: (200, {}, {"ok": True})).url)
    assert result.exit_code == 1
    assert "answered with no decision: {'ok': True}" in told(result)


def test_what_is_no_reply(scripted: Any, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}')
    result = run(path, out, scripted(lambda n, body: (200, {}, {"choices": []})).url)
    assert result.exit_code == 1
    assert "/v1/completions answered with no reply" in told(result)


def test_a_server_that_sends_elsewhere(scripted: Any, rows: Path, out: Path) -> None:
    server = scripted(lambda n, body: (308, {"location": "https://other/v1/systemone"}, b""))
    result = run(rows, out, server.url)
    assert result.exit_code == 1
    assert "sends to https://other/v1/systemone: give that server as --url" in told(result)


def test_a_row_that_names_a_model_of_its_own_fails_alone(scripted: Any, tmp_path: Path, out: Path) -> None:
    asked = {"state": "s", "questions": {"q": {"type": "noul"}}}
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(asked | more) for more in ({"model": "typo"}, {})) + "\n")
    missing = {"detail": {"error_type": "unknown_model", "message": "no such model"}}
    server = scripted(lambda n, body: (404, {}, missing) if "model" in body else (200, {}, DECISION))
    assert run(path, out, server.url).exit_code == 0
    assert [row.get("error", {}).get("type") for row in read_rows(out)] == ["unknown_model", None]


def test_a_name_and_a_password_are_not_kept(scripted: Any, rows: Path, out: Path) -> None:
    server = scripted(lambda n, body: (200, {}, DECISION))
    assert run(rows, out, server.url.replace("://", "://me:secret@")).exit_code == 0
    assert "secret" not in out.read_text()
    lost = run(rows, out, "http://me:secret@127.0.0.1:9", "--overwrite")
    assert lost.exit_code == 1
    assert "secret" not in lost.stderr


def test_another_calibration_of_the_server_is_another_run() -> None:
    cards = [{"x_fingerprint": "0" * 32}, {"x_fingerprint": "0" * 32, "x_calibration": {"digest": "abc"}}]
    assert [calibration_of(card) for card in cards] == [None, "abc"]
    asker = server_asker.ServerAsker("http://x", None, {}, 1)
    assert asker.mark(cards[0]) == "0" * 32
    for odd in ('a"b', "x" * 200, "0-0"):
        assert asker.mark({"x_fingerprint": odd}).startswith("url")


def test_an_error_of_one_row(scripted: Any, rows: Path, out: Path) -> None:
    server = scripted(lambda n, body: (500, {}, b"oh") if body["state"] == "state 3" else (200, {}, DECISION))
    assert run(rows, out, server.url).exit_code == 0
    assert [row["error"] for row in read_rows(out) if "error" in row] == [
        {"field": None, "message": "oh", "type": "status_500"}
    ]


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
    ],
)
def test_what_a_server_asks_to_wait(headers: dict[str, str], wait_s: float) -> None:
    assert _asked_for(headers, 1) == wait_s


def test_a_date_to_come() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(hours=1))
    assert 3000 < _asked_for({"retry-after": then}, 1) <= 3600


@pytest.mark.parametrize("headers", [{}, {"retry-after": "soon"}, {"retry-after": "nan"}, {"retry-after-ms": "inf"}])
def test_waits_of_our_own_grow(headers: dict[str, str]) -> None:
    assert 0.2 < _asked_for(headers, 1) <= 0.5
    assert 10 < _asked_for(headers, 50) <= 30


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"detail": "no"}, (None, "no", "status_422")),
        ({"detail": [{"loc": ["body", "a", 1], "msg": "bad"}]}, ("a.1", "bad", "invalid_request")),
        ({"detail": {"error_type": "t", "message": "m"}}, (None, "m", "t")),
        ({"error": {"message": "m", "type": "t", "param": "p", "code": None}}, ("p", "m", "t")),
        ({"error": "m"}, (None, "text", "status_422")),
        ([1], (None, "text", "status_422")),
        (None, (None, "text", "status_422")),
    ],
)
def test_errors_of_many_servers(content: Any, expected: tuple[str | None, str, str]) -> None:
    found = _refusal(422, content, "text")
    assert (found.field, found.message, found.kind) == expected
