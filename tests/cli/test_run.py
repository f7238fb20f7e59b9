"""`ramet run`: a row for every row, in order, resumed exactly, refused where it is not the same run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine, request, rows_in
from fakes.stub_writer import StubWriter, written

from ramet import cli
from ramet.cli.run import UNMARKED, _settings_mark
from ramet.decision import Decision
from ramet.errors import EngineFault, InvalidRequest, Overloaded
from ramet.request import DecisionRequest
from ramet.rows import read_rows


def run(rows: Path, out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["run", str(rows), "-o", str(out), *arguments], catch_exceptions=False)


def read(out: Path) -> list[dict[str, Any]]:
    """The rows, behind their head."""
    return list(read_rows(out))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return rows_in(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture(autouse=True)
def identified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a test has an engine of its own."""
    monkeypatch.setattr("ramet.cli.identified", CliEngine.identified)


class Unsteady(CliEngine):
    """Answers after waits of random length, so that requests finish in any order."""

    async def decide_async(self, request: DecisionRequest) -> Decision:
        self.delay_s = random.random() / 200
        return await super().decide_async(request)


def test_answers_in_order_however_they_finish(monkeypatch: pytest.MonkeyPatch, rows: Path, out: Path) -> None:
    engine = Unsteady()
    monkeypatch.setattr("ramet.cli.load_engine", engine.load)
    result = run(rows, out, "--parallel", "7")
    assert result.exit_code == 0
    written = read(out)
    assert [(row["index"], row["id"]) for row in written] == [(n, f"row-{n}") for n in range(20)]
    assert written[0].keys() == {"index", "request", "id", "model", "answers", "usage"}
    assert written[0]["model"] == "stub"
    assert result.stderr.startswith("20 rows in ")
    assert "0 of them errors" in result.stderr
    assert engine.closed


@pytest.mark.parametrize("parallel", [1, 3])
def test_no_more_in_flight_than_told(monkeypatch: pytest.MonkeyPatch, rows: Path, out: Path, parallel: int) -> None:
    most = 0

    class Counting(Unsteady):
        async def decide_async(self, request: DecisionRequest) -> Decision:
            nonlocal most
            most = max(most, self.n_running + 1)
            return await super().decide_async(request)

    monkeypatch.setattr("ramet.cli.load_engine", Counting().load)
    run(rows, out, "--parallel", str(parallel))
    assert most == parallel
    assert len(read(out)) == 20


def test_resumed_from_any_byte_it_writes_the_same(cli_engine: CliEngine, rows: Path, out: Path) -> None:
    run(rows, out)
    whole = out.read_bytes()
    end = whole.index(b"\n")  # of the head
    for cut in [0, 1, end, end + 1, whole.index(b"\n", end + 1) + 1, len(whole) // 2, len(whole) - 1]:
        out.write_bytes(whole[:cut])
        cli_engine.received.clear()
        result = run(rows, out)
        assert result.exit_code == 0
        assert out.read_bytes() == whole
        assert len(cli_engine.received) == min(20, 21 - whole[:cut].count(b"\n"))


def test_nothing_left_loads_nothing(cli_engine: CliEngine, rows: Path, out: Path) -> None:
    run(rows, out)
    result = run(rows, out)
    assert result.exit_code == 0
    assert "all 20 rows are there already" in result.stderr
    assert cli_engine.n_loads == 1


def test_rows_added_to_the_input_are_answered(cli_engine: CliEngine, rows: Path, out: Path) -> None:
    run(rows, out)
    before = out.read_bytes()
    rows.write_text(rows.read_text() + request(20))
    run(rows, out)
    assert out.read_bytes().startswith(before)
    assert read(out)[20]["id"] == "row-20"


@pytest.mark.parametrize(
    "arguments",
    [("-m", "other"), ("--debias", "2"), ("--dtype", "float32"), ("--batch-invariant",), ("--chunk-size", "4"),
     ("--mode", "block"), ("--ahead",), ("--confidence-threshold", "0.5"), ("--block-size", "8"),
     ("--max-model-len", "99"), ("--max-request-tokens", "99")],
)  # fmt: skip
def test_other_settings_are_refused(cli_engine: CliEngine, rows: Path, out: Path, arguments: tuple[str, ...]) -> None:
    run(rows, out)
    before = out.read_bytes()
    result = run(rows, out, *arguments)
    assert result.exit_code == 2
    why = "another model" if arguments[0] == "-m" else "other options, or by another release of Ramet"
    assert f"row 0 of {out} was made with {why}; --overwrite" in " ".join(result.stderr.split())
    assert out.read_bytes() == before
    assert cli_engine.n_loads == 1
    assert run(rows, out, *arguments, "--overwrite").exit_code == 0


def test_another_release_is_refused(
    cli_engine: CliEngine, rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may ask in other words."""
    run(rows, out)
    monkeypatch.setattr("ramet.cli.run.__version__", "99")
    assert "by another release of Ramet" in " ".join(run(rows, out).stderr.split())


def test_rows_of_an_earlier_form_are_refused(cli_engine: CliEngine, rows: Path, out: Path) -> None:
    run(rows, out)
    mark = read(out)[0]["request"][16:]
    out.write_text(out.read_text().replace(mark, "-0123abcd"))
    result = run(rows, out)
    assert result.exit_code == 2
    assert "was made with another model" in " ".join(result.stderr.split())


def test_every_setting_that_may_change_an_answer_is_marked() -> None:
    """One that is added is marked unless it is named here as harmless."""
    fields = pytest.importorskip("dataclasses").fields(pytest.importorskip("ramet.engine.settings").EngineSettings)
    assert {each.name for each in fields} >= UNMARKED
    assert _settings_mark({"a": 1}, {}) != _settings_mark({"a": 2}, {})
    assert _settings_mark({"threads": 1}, {}) == _settings_mark({"threads": 2}, {})
    assert _settings_mark({}, {"x_debias": 2}) != _settings_mark({}, {})


def test_another_input_is_refused(cli_engine: CliEngine, rows: Path, out: Path) -> None:
    run(rows, out)
    lines = rows.read_text().splitlines()
    lines[3] = request(99)
    rows.write_text("\n".join(lines))
    result = run(rows, out)
    assert result.exit_code == 2
    assert "was made from another input" in result.stderr
    assert f"row 3 of {out}" in result.stderr
    rows.write_text("\n".join(lines[:3]))
    assert "has more rows than the input" in run(rows, out).stderr


def test_the_input_is_never_the_output(cli_engine: CliEngine, rows: Path) -> None:
    before = rows.read_bytes()
    assert "overwrite the input" in run(rows, rows, "--overwrite").stderr
    assert rows.read_bytes() == before


def test_a_bad_row_becomes_an_error_row(cli_engine: CliEngine, tmp_path: Path, out: Path) -> None:
    bad = {
        "{": (None, "JSON", "invalid_request"),
        "[1]": (None, "a JSON object", "invalid_request"),
        request(0, questions={}): ("questions", "at least 1", "invalid_request"),
        request(1, x_debias=0): ("x_debias", "greater", "invalid_request"),
        request(1, images=["a"]): ("images", "holds media", "invalid_request"),
        request(1, samples=2): ("samples", "did you mean x_samples?", "invalid_request"),
        '{"prompt": "a", "images": ["a"]}': ("images", "holds media", "invalid_request"),
        request(2, state="x" * 2_000_000): ("state", "tokens", "max_tokens_exceeded"),
        '{"state": NaN}': (None, "NaN", "malformed_body"),
    }
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join([request(100), *bad, request(101)]))
    result = run(path, out)
    assert result.exit_code == 0
    assert f"{len(bad)} of them errors" in result.stderr
    first, *errors, last = read(out)
    assert "answers" in first
    assert last["id"] == "row-101"
    assert "answers" in last
    for row, (field, message, kind) in zip(errors, bad.values(), strict=True):
        assert (row["error"]["field"], row["error"]["type"]) == (field, kind)
        assert message in row["error"]["message"]
        assert "answers" not in row
    assert errors[2]["id"] == "row-0"


def test_invalid_bytes_are_an_error_row(cli_engine: CliEngine, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"state": "\xff"}\n' + request(1).encode())
    assert run(path, out).exit_code == 0
    bad, good = read(out)
    assert "UTF-8" in bad["error"]["message"]
    assert "answers" in good


def test_a_bug_at_one_row_is_an_error_row(monkeypatch: pytest.MonkeyPatch, rows: Path, out: Path) -> None:
    class Buggy(CliEngine):
        async def decide_async(self, request: DecisionRequest) -> Decision:
            if request.state == "state 5":
                raise ZeroDivisionError("oh")
            return await super().decide_async(request)

    monkeypatch.setattr("ramet.cli.load_engine", Buggy().load)
    assert run(rows, out).exit_code == 0
    written = read(out)
    assert written[5]["error"] == {"field": None, "message": "ZeroDivisionError: oh", "type": "internal_error"}
    assert sum("error" in row for row in written) == 1


def test_a_broken_engine_stops_the_run_which_goes_on_later(
    monkeypatch: pytest.MonkeyPatch, rows: Path, out: Path
) -> None:
    class Breaking(CliEngine):
        async def decide_async(self, request: DecisionRequest) -> Decision:
            if request.state == "state 5":
                self.fault = EngineFault("the memory is gone")
            return await super().decide_async(request)

    monkeypatch.setattr("ramet.cli.load_engine", Breaking().load)
    result = run(rows, out, "--parallel", "2")
    assert result.exit_code == 1
    assert "the memory is gone" in result.stderr
    assert 1 <= len(read(out)) <= 5
    monkeypatch.setattr("ramet.cli.load_engine", CliEngine().load)
    assert run(rows, out).exit_code == 0
    assert [row["index"] for row in read(out)] == list(range(20))


def test_a_full_queue_is_waited_for(cli_engine: CliEngine, rows: Path, out: Path) -> None:
    cli_engine.max_running, cli_engine.retry_after_s, cli_engine.delay_s = 2, 0.001, 0.001
    assert run(rows, out, "--parallel", "8").exit_code == 0
    assert all("answers" in row for row in read(out))
    assert len(cli_engine.received) > 20


def test_options_and_ignored_fields(cli_engine: CliEngine, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(request(0, x_debias=2, user="a", model="jev-latest") + "\n" + request(1, user="b"))
    result = run(path, out, "--debias", "3", "--confidence", "top")
    assert "kept: 'user', in 2 rows" in result.stderr
    assert [row["user"] for row in read(out)] == ["a", "b"]
    asked = cli_engine.received[0]
    assert (asked.x_debias, asked.x_confidence, asked.model) == (3, "top", "stub")


def test_a_rows_own_salt(cli_engine: CliEngine, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([request(0, cache_salt="tenant a"), request(1), request(2, cache_salt=3)]))
    result = run(path, out)
    assert "kept" not in result.stderr
    assert "ignored" not in result.stderr
    assert sorted(asked.cache_salt for asked in cli_engine.received) == ["", "tenant a"]
    assert read(out)[2]["error"]["field"] == "cache_salt"


def test_settings_of_the_cache_reach_the_engine(cli_engine: CliEngine, rows: Path, out: Path, tmp_path: Path) -> None:
    """And do not make it another run."""
    assert run(rows, out).exit_code == 0
    arguments = ("--memory-cache-bytes", "7", "--disk-cache", str(tmp_path), "--disk-cache-bytes", "9")
    assert run(rows, out, *arguments, "--checkpoint-spacing", "64").exit_code == 0  # all rows are there
    assert run(rows, out, *arguments, "--checkpoint-spacing", "64", "--overwrite").exit_code == 0
    expected = {"memory_cache_bytes": 7, "disk_cache": str(tmp_path), "disk_cache_bytes": 9, "checkpoint_spacing": 64}
    assert cli_engine.options == expected


def test_stopped_by_hand(monkeypatch: pytest.MonkeyPatch, rows: Path, out: Path) -> None:
    class Stopped(CliEngine):
        async def decide_async(self, request: DecisionRequest) -> Decision:
            if request.state == "state 5":
                raise KeyboardInterrupt
            return await super().decide_async(request)

    monkeypatch.setattr("ramet.cli.load_engine", Stopped().load)
    result = run(rows, out, "--parallel", "1")
    assert result.exit_code == 130
    assert "the same command goes on from here" in result.stderr
    assert [row["index"] for row in read(out)] == list(range(5))


def chat(number: int, **more: Any) -> str:
    return json.dumps({"id": f"row-{number}", "messages": [{"role": "user", "content": "ab" * number}], **more})


@pytest.fixture
def writer(cli_engine: CliEngine) -> StubWriter:
    cli_engine.text = StubWriter(kind="masks", reply=written("ab 🦩the cab"))
    return cli_engine.text


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Decisions, chats and prompts by turns."""
    path = tmp_path / "texts.jsonl"
    lines = [(request, chat)[n % 2](n) if n % 3 else json.dumps({"prompt": [5, n], "max_tokens": 3}) for n in range(12)]
    path.write_text("\n".join(lines))
    return path


def test_rows_that_ask_for_text(cli_engine: CliEngine, writer: StubWriter, texts: Path, out: Path) -> None:
    result = run(texts, out, "--parallel", "5")
    assert result.exit_code == 0, result.stderr
    rows = read(out)
    assert [row["index"] for row in rows] == [*range(12)]
    n = len(writer.reply)
    n_prompt = len(next(asked.prompt for asked in writer.received if len(asked.prompt) > 2))
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n + n_prompt, "x_steps": 24}
    expected = {"index": 1, "id": "row-1", "model": "stub", "text": "ab 🦩the cab", "finish_reason": "stop",
                "usage": usage | {"x_tokens_per_step": round(n / 24, 4), "x_mean_chunk": 4.0}}  # fmt: skip
    assert rows[1] | {"request": 0} == expected | {"request": 0}
    assert (rows[0]["text"], rows[0]["finish_reason"], rows[0]["usage"]["completion_tokens"]) == (
        "ab \ufffd",
        "length",
        3,
    )
    assert [n for n, row in enumerate(rows) if "answers" in row] == [2, 4, 8, 10]
    assert len(cli_engine.received) == 4


def test_texts_resumed_from_any_byte_are_the_same(writer: StubWriter, texts: Path, out: Path) -> None:
    run(texts, out)
    whole = out.read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        out.write_bytes(whole[:cut])
        assert run(texts, out).exit_code == 0
        assert out.read_bytes() == whole


def test_parameters_of_a_row(cli_engine: CliEngine, writer: StubWriter, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [chat(1, temperature=0.5, seed=3, chunk_size=4, stop=" cab", logprobs=True, model="other", stream=True),
             json.dumps({"prompt": "ab", "logprobs": 1})]  # fmt: skip
    path.write_text("\n".join(lines))
    result = run(path, out)
    asked = writer.received[0]
    assert (asked.temperature, asked.seed, asked.chunk_size) == (0.5, 3, 4)
    first, second = read(out)
    assert (first["text"], first["stop_reason"], first["model"]) == ("ab 🦩the", " cab", "stub")
    assert [each["token"] for each in first["logprobs"]["content"]][:2] == ["ab", " "]
    assert second["logprobs"]["tokens"][:2] == ["ab", " "]
    assert "ignored: 'stream', in 1 rows" in result.stderr


def test_a_bad_row_for_text_becomes_an_error_row(writer: StubWriter, tmp_path: Path, out: Path) -> None:
    bad = {
        chat(1, temperature=-1): ("temperature", "invalid_request"),
        chat(2, top_logprobs=2, logprobs=True): ("top_logprobs", "invalid_request"),
        chat(3, temprature=1): ("temprature", "invalid_request"),
        chat(3, text="x"): ("text", "invalid_request"),
        chat(4, prompt="ab"): ("prompt", "invalid_request"),
        json.dumps({"prompt": ["ab", "ab"]}): ("prompt", "invalid_request"),
        json.dumps({"messages": []}): ("messages", "invalid_request"),
        json.dumps({"messages": [{"role": "tool", "content": "x"}]}): ("messages", "invalid_request"),
    }
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([chat(0), *bad, chat(9)]))
    result = run(path, out)
    assert result.exit_code == 0
    assert f"{len(bad)} of them errors" in result.stderr
    first, *errors, last = read(out)
    assert first["text"] == last["text"] == "ab 🦩the cab"
    for row, (field, kind) in zip(errors, bad.values(), strict=True):
        assert (row["error"]["field"], row["error"]["type"]) == (field, kind)
        assert "text" not in row
    assert errors[0]["id"] == "row-1"


def test_what_the_engine_refuses_has_the_row_s_name_for_it(writer: StubWriter, tmp_path: Path, out: Path) -> None:
    writer.failure = InvalidRequest("is too long", field="max_tokens")
    path = tmp_path / "rows.jsonl"
    path.write_text(chat(0, max_completion_tokens=9) + "\n" + request(1))
    assert run(path, out).exit_code == 0
    bad, good = read(out)
    assert bad["error"]["field"] == "max_completion_tokens"
    assert "answers" in good


def test_a_full_queue_is_waited_for_with_texts_too(
    monkeypatch: pytest.MonkeyPatch, writer: StubWriter, texts: Path, out: Path
) -> None:
    writer.failure = Overloaded("full", retry_after_s=0.001)
    begun = writer.stream

    def stream(asked: Any) -> Any:
        writer.failure = None if len(writer.received) > 20 else writer.failure
        return begun(asked)

    monkeypatch.setattr(writer, "stream", stream)
    assert run(texts, out).exit_code == 0
    assert not any("error" in row for row in read(out))
    assert len(writer.received) > 20


def test_a_model_that_writes_no_text(cli_engine: CliEngine, texts: Path, out: Path) -> None:
    assert run(texts, out).exit_code == 0
    assert [row["error"]["type"] for row in read(out) if "error" in row] == ["not_supported"] * 8


def test_a_decision_s_row_stays_one_whatever_it_has_besides(writer: StubWriter, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(request(0, prompt="x", messages=[]))
    result = run(path, out)
    assert (read(out)[0]["prompt"], read(out)[0]["messages"]) == ("x", [])
    assert "answers" in read(out)[0]
    assert "kept: 'prompt', in 1 rows" in result.stderr
