"""`ramet run` over forms of files: what is asked and kept of each, what comes out, and how each goes on."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine, request, rows_in
from fakes.stub_writer import StubWriter, written

from ramet import cli
from ramet.decision import Decision
from ramet.request import DecisionRequest
from ramet.rows import numbered_rows, read_rows
from ramet.rows.form import FORMS
from ramet.version import __version__

QUESTION = {"type": "choice", "instructions": "Which?", "criteria": {"a.b": None, "c": "d"}}
FLAG = ("--noul", "late=Is it late?")
TABLES = [ending for ending, form in FORMS.items() if form.is_table]


def run(rows: Path, out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["run", str(rows), "-o", str(out), *arguments], catch_exceptions=False)


def told(result: Result) -> str:
    return " ".join(result.stderr.split())


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture(autouse=True)
def engine(cli_engine: CliEngine, monkeypatch: pytest.MonkeyPatch) -> CliEngine:
    monkeypatch.setattr("ramet.cli.identified", CliEngine.identified)
    return cli_engine


def source(directory: Path, ending: str) -> Path:
    """Three rows, the same in each form: an id, a state that is JSON, questions, a field that is kept."""
    questions = json.dumps({"q": QUESTION})
    cells = [(f"r{n}", json.dumps({"n": n, "é": 'a"\n'}), questions, f"k{n}") for n in range(3)]
    path = directory / f"rows{ending}"
    names = ("id", "state", "questions", "customer")
    if ending == ".parquet":
        pq.write_table(pa.table(dict(zip(names, map(list, zip(*cells, strict=True)), strict=True))), path)
        return path
    if "csv" in ending:
        lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in (names, *cells)]
        return write(path, "\r\n".join(lines))
    rows = [{"id": i, "state": json.loads(s), "questions": {"q": QUESTION}, "customer": k} for i, s, _, k in cells]
    return write(path, "\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("into", FORMS)
@pytest.mark.parametrize("ending", [".jsonl", ".csv.gz", ".parquet"])
def test_every_form_into_every_form(tmp_path: Path, engine: CliEngine, ending: str, into: str) -> None:
    out = tmp_path / f"out{into}"
    result = run(source(tmp_path, ending), out)
    assert result.exit_code == 0, result.stderr
    assert [asked.state for asked in engine.received] == [{"n": n, "é": 'a"\n'} for n in range(3)]
    heads: list[dict[str, Any]] = []
    rows = [row for _, row in numbered_rows(out, heads=heads)]
    assert [(row["index"], row["id"], row["customer"]) for row in rows] == [(n, f"r{n}", f"k{n}") for n in range(3)]
    assert rows[0]["answers"]["q"]["probabilities"].keys() == {"a.b", "c"}
    assert rows[0]["answers"]["q"]["x_label_mass"] == 0.75
    assert rows[0]["usage"]["output_tokens"] == 1
    (head,) = heads
    assert (head["ramet"], head["dtype"], head["model_hash"], head["units"]["logprobs"]) == (
        __version__, "hash", "0" * 32, "nats"
    )  # fmt: skip
    assert {"commit", "machine", "kernels", "settings", "device"} <= head.keys()
    loads, before = engine.n_loads, out.read_bytes()
    assert "all 3 rows are there already" in run(source(tmp_path, ending), out).stderr
    assert (engine.n_loads, out.read_bytes()) == (loads, before)
    assert "with other options" in told(run(source(tmp_path, ending), out, "--debias", "2"))
    assert (out.read_bytes(), [*tmp_path.glob("*.part")]) == (before, [])
    assert run(source(tmp_path, ending), out, "--debias", "2", "--overwrite").exit_code == 0
    assert engine.received[-1].x_debias == 2


def test_answers_are_the_same_in_each_form(tmp_path: Path) -> None:
    found = []
    for ending in (".jsonl", ".csv", ".parquet"):
        run(source(tmp_path, ".jsonl"), tmp_path / f"out{ending}")
        found.append([row["answers"] for row in read_rows(tmp_path / f"out{ending}")])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("into", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_what_was_stopped_goes_on(
    tmp_path: Path, engine: CliEngine, monkeypatch: pytest.MonkeyPatch, ending: str, into: str
) -> None:
    class Stopped(CliEngine):
        async def decide_async(self, request: DecisionRequest) -> Decision:
            if isinstance(request.state, dict) and request.state["n"] == 2:
                raise KeyboardInterrupt
            return await super().decide_async(request)

    rows, whole, out = source(tmp_path, ending), tmp_path / f"whole{into}", tmp_path / f"out{into}"
    assert run(rows, whole).exit_code == 0
    monkeypatch.setattr("ramet.cli.load_engine", Stopped().load)
    assert run(rows, out, "--parallel", "1").exit_code == 130
    assert out.exists() is (into == ".jsonl")
    monkeypatch.setattr("ramet.cli.load_engine", engine.load)
    engine.received.clear()
    result = run(rows, out)
    assert "2 of 3 rows are there; going on behind them" in result.stderr
    assert len(engine.received) == 1
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("into", FORMS)
@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_larger_limit_goes_on(tmp_path: Path, engine: CliEngine, ending: str, into: str) -> None:
    rows, whole, out = source(tmp_path, ending), tmp_path / f"whole{into}", tmp_path / f"out{into}"
    assert run(rows, whole).exit_code == 0
    assert run(rows, out, "--limit", "1").exit_code == 0
    assert len(list(read_rows(out))) == 1
    engine.received.clear()
    assert "1 of 3 rows are there" in run(rows, out, "--limit", "7").stderr
    assert len(engine.received) == 2
    assert list(read_rows(out)) == list(read_rows(whole))
    assert "has more rows than --limit says" in told(run(rows, out, "--limit", "2"))
    assert list(read_rows(out)) == list(read_rows(whole))


@pytest.mark.parametrize("into", [".jsonl", ".csv"])
def test_every_and_limit(tmp_path: Path, engine: CliEngine, into: str) -> None:
    rows, out = rows_in(tmp_path), tmp_path / f"out{into}"
    assert run(rows, out, "--every", "6", "--limit", "3").exit_code == 0
    assert [(row["index"], row["id"]) for row in read_rows(out)] == [(n, f"row-{n}") for n in (0, 6, 12)]
    assert run(rows, out, "--every", "6").exit_code == 0
    assert [row["index"] for row in read_rows(out)] == [0, 6, 12, 18]
    assert "row 1 of" in (said := told(run(rows, out, "--every", "5")))
    assert "answers another row of the input: --every was another" in said
    for option in ("--every", "--limit"):
        assert run(rows, out, option, "0").exit_code == 2


@pytest.mark.parametrize("into", TABLES)
def test_kept_columns_of_every_so_many_rows(tmp_path: Path, into: str) -> None:
    path = write(tmp_path / "rows.csv", "state,n\n" + "".join(f"s{n},{n}\n" for n in range(10)))
    assert run(path, tmp_path / f"out{into}", *FLAG, "--every", "4").exit_code == 0
    assert [(row["index"], row["n"]) for row in read_rows(tmp_path / f"out{into}")] == [(0, "0"), (4, "4"), (8, "8")]


def test_questions_for_all_rows(tmp_path: Path, engine: CliEngine) -> None:
    path = write(tmp_path / "rows.csv", "state,x_debias,seed\nhello,3,\n[1],,7\n,,\n")
    file = tmp_path / "questions.json"
    for content in ({"late": {"type": "noul", "instructions": "Is it late?"}}, None):
        file.write_text(json.dumps(content or {"state": "x", "questions": {"late": QUESTION}}))
        assert run(path, tmp_path / "out.jsonl", "--questions", str(file), "--overwrite").exit_code == 0
    assert run(path, tmp_path / "out.jsonl", *FLAG, "--overwrite").exit_code == 0
    assert [asked.state for asked in engine.received[:3]] == ["hello", [1], ""]
    assert [(asked.x_debias, asked.seed) for asked in engine.received[:3]] == [(3, None), (None, 7), (None, None)]
    assert [asked.questions["late"].type for asked in engine.received] == ["noul"] * 3 + ["choice"] * 3 + ["noul"] * 3
    other = run(path, tmp_path / "out.jsonl", "--noul", "late=Was it late?")
    assert "with other options" in told(other)


def test_questions_that_are_none(tmp_path: Path) -> None:
    path, file = rows_in(tmp_path), tmp_path / "q.json"
    file.write_text('{"a": {"type": "rank"}}')
    result = run(path, tmp_path / "out.jsonl", "--questions", str(file))
    assert result.exit_code == 2
    assert "questions.a.type: unknown question type 'rank'" in told(result)
    assert "from one place" in told(run(path, tmp_path / "out.jsonl", "--questions", str(file), *FLAG))
    file.write_text("[1]")
    assert run(path, tmp_path / "out.jsonl", "--questions", str(file)).exit_code == 2
    assert run(path, tmp_path / "out.jsonl", *FLAG).exit_code == 0
    (error,) = {row["error"]["message"] for row in read_rows(tmp_path / "out.jsonl")}
    assert error == "are given for all rows: leave the row's own away"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("id,text2", "has the columns 'id', 'text2': a decision needs `state`, and `questions` as JSON"),
        ("id;state", "has the columns 'id;state'"),
        ("state", "a decision needs `state`, and `questions` as JSON or as options"),
        ("state,questions,priority", "column 'priority' requests run in the order"),
        ("state,questions,images", "column 'images' holds media"),
        ("state,questions,x_debais", "column 'x_debais' unknown field; did you mean x_debias?; or pass it through as"),
        ("state,questions,model,answers.q.noul", "answers: the output has a field of that name of its own"),
        ("state,questions,usage", "usage: the output has a field of that name of its own: rename this one"),
        ("prompt,temprature", "column 'temprature' is unknown; did you mean temperature?"),
        ("prompt,min_p", "column 'min_p' draws are cut by top_k"),
        ("state,questions,state", "line 1: names two columns 'state'"),
    ],
)
def test_tables_of_which_no_row_can_be_answered(tmp_path: Path, engine: CliEngine, header: str, message: str) -> None:
    result = run(write(tmp_path / "rows.csv", header + "\n"), tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert message in told(result)
    assert (engine.n_loads, (tmp_path / "out.jsonl").exists()) == (0, False)


def test_two_sets_of_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "state,questions\n")
    assert "has a column `questions`, and the options have questions" in told(run(path, tmp_path / "o.csv", *FLAG))


@pytest.mark.parametrize("into", [".jsonl", ".csv"])
def test_what_is_kept_whatever_it_means(tmp_path: Path, engine: CliEngine, into: str) -> None:
    path = write(tmp_path / "rows.csv", "state,priority,seed,gold.late\nx,high,7,true\n")
    out = tmp_path / f"out{into}"
    keep = [word for name in ("priority", "seed", "state") for word in ("--keep", name)]
    assert run(path, out, *FLAG, *keep).exit_code == 0
    (row,) = read_rows(out)
    assert (row["priority"], row["seed"], row["state"], row["gold"]) == ("high", 7, "x", {"late": "true"})
    assert engine.received[0].seed == 7
    assert "with other options" in told(run(path, out, *FLAG, "--keep", "priority"))
    assert "--keep id: it comes back anyway" in told(run(path, out, *FLAG, "--keep", "id"))


def test_numbers_of_parquet_that_json_has_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"id": [2**53 + 1, 2], "state": ["a", None], "price": [float("nan"), 1.5], "n": [2**53 + 1, None]}
    pq.write_table(pa.table(columns), path)
    assert run(path, tmp_path / "out.jsonl", *FLAG).exit_code == 0
    bad, missing = read_rows(tmp_path / "out.jsonl")
    assert (bad["error"]["field"], bad["error"]["message"]) == ("price", "nan has a number that is not finite")
    assert (missing["error"]["field"], missing["price"], missing["n"]) == ("state", 1.5, None)
    assert run(path, tmp_path / "out.parquet", *FLAG).exit_code == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert repr(table["price"].to_pylist()) == "[nan, 1.5]"
    assert (table["n"].to_pylist(), table["id"].to_pylist()) == ([2**53 + 1, None], [2**53 + 1, 2])
    assert table["answers.late.noul"][0].as_py() > 0


def test_columns_of_the_output(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "customer,id,state\nc,1,x\nd,,y\n")
    run(path, tmp_path / "out.csv", *FLAG)
    header, first, second = csv.reader((tmp_path / "out.csv").read_text().splitlines())
    assert header == [
        "index", "request", "id", "customer", "model", "answers.late.type", "answers.late.noul",
        "answers.late.x_label_mass", "usage.input_tokens", "usage.output_tokens",
    ]  # fmt: skip
    assert (first[0], first[2:6], second[2]) == ("0", ["1", "c", "stub", "noul"], "")
    assert json.loads((tmp_path / "out.csv.run.json").read_text())[0]["request"]["questions"].keys() == {"late"}


def test_a_table_with_a_bad_line_is_refused_before_any_work(tmp_path: Path, engine: CliEngine) -> None:
    path = write(tmp_path / "rows.csv", "state,n\nx,1\ny\n")
    result = run(path, tmp_path / "out.csv", *FLAG)
    assert (result.exit_code, engine.n_loads) == (2, 0)
    assert "rows.csv, line 3: has 1 cell, and the first line names 2 columns" in told(result)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_lines_behind_gzip(tmp_path: Path, engine: CliEngine) -> None:
    path = write(tmp_path / "rows.jsonl.gz", "\ufeff" + request(0) + "\r\n\n{\n" + request(2))
    assert run(path, tmp_path / "out.jsonl.gz").exit_code == 0
    good, bad, last = read_rows(tmp_path / "out.jsonl.gz")
    assert ("answers" in good, "JSON" in bad["error"]["message"], last["id"]) == (True, True, "row-2")
    path.write_bytes(path.read_bytes()[:-9])
    assert "is cut off" in told(run(path, tmp_path / "new.jsonl"))


def test_prompts_in_a_table(tmp_path: Path, engine: CliEngine) -> None:
    engine.text = StubWriter(kind="masks", reply=written("ab 🦩the cab"))
    path = write(tmp_path / "rows.csv", 'id,prompt,max_tokens,user\n1,"[INST] a, b",3,me\n2,"[5, 7]",,\n')
    assert run(path, tmp_path / "out.csv").exit_code == 0
    first, second = read_rows(tmp_path / "out.csv")
    assert (first["usage"]["completion_tokens"], first["user"], first["finish_reason"]) == (3, "me", "length")
    assert second["text"] == "ab 🦩the cab"
    assert engine.text.received[1].prompt == (5, 7)


@pytest.mark.parametrize("name", ["rows.tsv", "rows.json", "rows"])
def test_forms_that_are_not_known(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "")
    for words in ((path, tmp_path / "o.csv"), (rows_in(tmp_path), path)):
        result = run(*words)
        assert result.exit_code == 2
        assert ".jsonl, .ndjson, .jsonl.gz, .ndjson.gz, .csv, .csv.gz, .parquet" in told(result)
