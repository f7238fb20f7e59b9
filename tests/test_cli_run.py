"""`ramet run`: a row for every row, in order, resumed exactly, refused where it is not the same run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from cli_engine import CliEngine
from click.testing import CliRunner, Result

from ramet import cli
from ramet.errors import EngineFault
from ramet.request import Decision, DecisionRequest


def request(number: int, **more: Any) -> str:
    question = {"type": "noul", "instructions": f"Is it {number}?"}
    return json.dumps({"id": f"row-{number}", "state": f"state {number}", "questions": {"q": question}, **more})


def run(rows: Path, out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["run", str(rows), "-o", str(out), *arguments], catch_exceptions=False)


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(request(number) for number in range(20)) + "\n")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


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
    for cut in [0, 1, whole.index(b"\n"), whole.index(b"\n") + 1, len(whole) // 2, len(whole) - 1]:
        out.write_bytes(whole[:cut])
        cli_engine.received.clear()
        result = run(rows, out)
        assert result.exit_code == 0
        assert out.read_bytes() == whole
        assert len(cli_engine.received) == 20 - whole[:cut].count(b"\n")


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
    "arguments", [("-m", "other"), ("--debias", "2"), ("--dtype", "float32"), ("--batch-invariant",)]
)
def test_other_settings_are_refused(cli_engine: CliEngine, rows: Path, out: Path, arguments: tuple[str, ...]) -> None:
    run(rows, out)
    before = out.read_bytes()
    result = run(rows, out, *arguments)
    assert result.exit_code == 2
    assert f"row 0 of {out} was made with another model or other options" in " ".join(result.stderr.split())
    assert out.read_bytes() == before
    assert cli_engine.n_loads == 1
    assert run(rows, out, *arguments, "--overwrite").exit_code == 0


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
    path.write_text(request(0, x_debias=2, seed=1, model="jev-latest") + "\n" + request(1, seed=2))
    result = run(path, out, "--debias", "3", "--confidence", "top")
    assert "ignored: 'seed', in 2 rows" in result.stderr
    asked = cli_engine.received[0]
    assert (asked.x_debias, asked.x_confidence, asked.model) == (3, "top", "stub")


def test_a_rows_own_salt(cli_engine: CliEngine, tmp_path: Path, out: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([request(0, cache_salt="tenant a"), request(1), request(2, cache_salt=3)]))
    result = run(path, out)
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
