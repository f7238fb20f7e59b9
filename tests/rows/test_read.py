"""Rows of files: what each form says, and every kind of file that is not what its name says."""

from __future__ import annotations

import gzip
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramet.errors import InvalidRequest
from ramet.rows import numbered_rows, read_rows, table_columns
from ramet.rows.cells import EITHER, JSON, STATE, TEXTS
from ramet.rows.form import FORMS, form_of
from ramet.server.openai.request import ChatRequest, CompletionRequest

ROWS: list[dict[str, Any]] = [
    {"id": "a", "state": 'say "hi",\nthen go', "price": 2**63 + 1},
    {"id": 17, "state": {"é": [1, 2.5, None, True]}, "questions": {}, "gold": {"a.b": "x"}},
    {"id": None, "state": "", "text": "🦩\r\n"},
]


def fault(path: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        list(read_rows(path))
    return str(caught.value).replace(str(path), path.name)


def written(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def lines(rows: list[dict[str, Any]], end: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


@pytest.mark.parametrize("name", ["r.jsonl", "R.JSONL", "r.ndjson", "r.jsonl.gz", "r.ndjson.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n \n\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_json_lines_are_what_they_say(tmp_path: Path, name: str, end: str, bom: bytes) -> None:
    path = written(tmp_path, name.lower(), bom + lines(ROWS, end))
    assert list(read_rows(path)) == ROWS
    path = written(tmp_path, name.lower(), bom + lines(ROWS, end).rstrip())  # no end behind the last
    assert [row for _, row in numbered_rows(path)] == ROWS


def test_lines_of_a_run_s_head_are_passed_over(tmp_path: Path) -> None:
    head = {"ramet": "1"}
    path = written(tmp_path, "r.jsonl", lines([{"run": head}, {"run": "x"}, {"run": head, "id": 1}]))
    heads: list[dict[str, Any]] = []
    assert [number for number, _ in numbered_rows(path, heads=heads)] == [2, 3]
    assert heads == [head]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "r.jsonl, line 2: is no JSON"),
        (b"[1]", "r.jsonl, line 2: is no JSON object"),
        (b'{"a": NaN}', "r.jsonl, line 2: is no JSON (NaN is no number of JSON)"),
        (b'{"a": 1, "a": 1}', "r.jsonl, line 2: is no JSON (an object has the name 'a' twice)"),
        (b'{"a": "\\ud800"}', "r.jsonl, line 2: is no JSON ('utf-8' codec"),
        (b'{"a": "\xff"}', "r.jsonl, line 2: is not UTF-8: invalid start byte at byte 10 of the file"),
    ],
)
def test_lines_that_are_no_rows(tmp_path: Path, content: bytes, message: str) -> None:
    assert fault(written(tmp_path, "r.jsonl", b"{}\n" + content)).startswith(message)


def test_the_byte_that_is_not_text_is_counted_behind_a_mark(tmp_path: Path) -> None:
    assert "at byte 5 of the file" in fault(written(tmp_path, "r.csv", b"\xef\xbb\xbfid\xff\n"))
    assert "at byte 6 of the file" in fault(written(tmp_path, "r.csv.gz", b"id\n\xc3\xa9,\xff\n"))


def test_whole_numbers_of_any_size_stay_whole(tmp_path: Path) -> None:
    path = written(tmp_path, "r.jsonl", b'{"a": 9007199254740993, "b": -36893488147419103233}\n')
    assert list(read_rows(path)) == [{"a": 2**53 + 1, "b": -(2**65) - 1}]
    pq.write_table(pa.table({"a": pa.array([2**53 + 1, None], pa.int64())}), tmp_path / "r.parquet")
    assert list(read_rows(tmp_path / "r.parquet")) == [{"a": 2**53 + 1}, {"a": None}]


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_cells_of_csv(tmp_path: Path, name: str, end: str) -> None:
    text = '\ufeffid,state,questions,price,x_debias,gold.topic\n17,"say ""hi"",\nnow",{},1.50,2,billing\n\n,[oh],,,,\n'
    path = written(tmp_path, name, text.replace("\n", end).encode())
    assert list(numbered_rows(path)) == [
        (2, {"id": "17", "state": f'say "hi",{end}now', "questions": {}, "price": "1.50", "x_debias": 2,
             "gold": {"topic": "billing"}}),
        (5, {"state": "[oh]", "price": ""}),
    ]  # fmt: skip
    assert table_columns(path) == ["id", "state", "questions", "price", "x_debias", "gold.topic"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "r.csv is empty: the first line of CSV names the columns"),
        ("\n\n", "r.csv is empty"),
        (",state\n", "r.csv, line 1: column 1 has no name: give it one (pandas leaves out its index"),
        ("id,state,id\n", "r.csv, line 1: names two columns 'id': rename one of them"),
        ("id,state\na,b\nc\n", "r.csv, line 3: has 1 cell, and the first line names 2 columns"),
        ('id,state\n"a\nb",c,d\n', "r.csv, line 2: has 3 cells, and the first line names 2 columns"),
        ('id,state\na,"b\n', "r.csv, line 2: is no CSV: unexpected end of data"),
        ('id,state\na,"b"c\n', "r.csv, line 2: is no CSV: ',' expected after '\"'"),
        ("id,state\na,b\rc\n", "r.csv, line 2: is no CSV: new-line character seen in unquoted field"),
        ("id,questions\na,{\n", "r.csv, line 2: column 'questions': '{' is no JSON"),
        ("id,questions\na,NaN\n", "r.csv, line 2: column 'questions': 'NaN' is no JSON (NaN is no number"),
        ("gold,gold.a\n2,b\n", "r.csv, line 2: column 'gold.a' lies within the value of another"),
    ],
)
def test_what_is_no_csv(tmp_path: Path, content: str, message: str) -> None:
    assert fault(written(tmp_path, "r.csv", content.encode())).startswith(message)


def test_a_cell_of_a_whole_request(tmp_path: Path) -> None:
    """Which Python's reader refuses by default."""
    path = written(tmp_path, "r.csv", b"state\n" + b"a" * (1 << 20) + b"\n")
    assert len(next(read_rows(path))["state"]) == 1 << 20


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    table = {
        "id": pa.array([1, 2], pa.int32()),
        "state": ["[1]", None],
        "questions": ['{"a": {"type": "noul"}}', None],
        "when": pa.array([1_700_000_000_000_000_001, None], pa.timestamp("ns")),
        "price": pa.array([None, float("nan")]),
        "kind": pa.array(["x", "y"]).dictionary_encode(),
        "gold.topic": ["billing", None],
    }
    pq.write_table(pa.table(table), path, row_group_size=1)
    first, second = read_rows(path)
    assert first == {
        "id": 1, "state": [1], "questions": {"a": {"type": "noul"}}, "when": "2023-11-14 22:13:20.000000001",
        "price": None, "kind": "x", "gold": {"topic": "billing"},
    }  # fmt: skip
    assert second["price"] != second["price"]  # as the table has it
    assert (second["id"], second["when"], second.keys()) == (2, None, {"id", "when", "price", "kind"})


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("questions", [{"a": {"type": "noul"}}, {"b": {"type": "noul"}}], "holds structs"),
        ("state", [[{"a": 1}], [{"b": 2}]], "holds structs"),
        ("meta", [{"at": datetime(2026, 1, 1)}], "holds times or decimals inside"),
        ("meta", [{"raw": b"x"}], "holds bytes"),
    ],
)
def test_columns_that_no_row_can_have(tmp_path: Path, column: str, values: list[Any], why: str) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({column: pa.array(values)}), path)
    with pytest.raises(InvalidRequest, match=f"column '{column}' {why}"):
        list(read_rows(path))


def test_a_damaged_parquet_is_said_and_what_others_wrote_beside_is_no_head(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    table = pa.table({"n": [1]})
    for other in (b"x", b"5", b"[1]"):
        pq.write_table(table.replace_schema_metadata({b"ramet": other}), path)
        heads: list[dict[str, Any]] = []
        assert [row for _, row in numbered_rows(path, heads=heads)] == [{"n": 1}]
        assert heads == []
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + b"\xff" * 32 + whole[-8:])
    with pytest.raises(InvalidRequest, match="no Parquet that can be read"):
        list(read_rows(path))


def test_parquet_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path, row_group_size=300)
    read: list[int] = []
    rows = list(numbered_rows(path, read.append))
    assert [(number, row["n"]) for number, row in rows] == [(n + 1, n) for n in range(1000)]
    assert 0.9 * path.stat().st_size < sum(read) <= path.stat().st_size


def test_what_is_no_parquet(tmp_path: Path) -> None:
    assert fault(written(tmp_path, "r.parquet", b"id\n")).startswith("r.parquet is no Parquet that can be read")
    path = tmp_path / "two.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    assert fault(path) == "two.parquet names two columns 'a': rename one of them"
    pq.write_table(pa.table({"picture": pa.array([[b"\xff"]])}), path)
    assert fault(path).startswith("two.parquet: column 'picture' holds bytes")


def test_parquet_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"r.parquet: Parquet needs pyarrow: pip install 'ramet\[parquet\]'"):
        form_of("r.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert not form_of("r.csv").gzipped


@pytest.mark.parametrize("name", ["r.tsv", "r.json", "r.xlsx", "r", "jsonl", "r.csv.zip", "r.parquet.gz"])
def test_endings_that_are_not_known(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        form_of(name)
    assert str(caught.value).startswith(f"{name}: rows are read and written by")
    assert all(ending in str(caught.value) for ending in FORMS)


@pytest.mark.parametrize("name", ["r.jsonl.gz", "r.csv.gz"])
def test_what_gzip_cannot_read(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, b'{"a": 1}\n' * 100 if "json" in name else b"id,state\n" * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert f"{name} is cut off: make it again, or unpack what it has with `gzip -dc`" in fault(path)
    path.write_bytes(b"id,state\n")
    assert f"{name} is no gzip file" in fault(path)
    path.write_bytes(whole[:12] + bytes(8) + whole[20:])
    assert "gzip" in fault(path)


def test_every_field_of_a_request_is_read_as_it_is_typed() -> None:
    """A column of a field that is added is text until it is named here."""
    named = TEXTS | JSON | EITHER | STATE
    for request in (ChatRequest, CompletionRequest):
        assert {name for name in request.model_fields if not name.startswith("x_")} <= named
