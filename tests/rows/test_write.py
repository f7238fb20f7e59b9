"""Rows that are written: they come back as they were, in every form that can hold them."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.decision import Decision
from ramet.errors import InvalidRequest
from ramet.rows import numbered_rows, read_rows
from ramet.rows.columns import LAST, columns_of
from ramet.rows.form import FORMS
from ramet.rows.names import column_of, flat, nested, steps_of
from ramet.rows.write import KeptColumns, write_rows

ANSWERS = {
    "topic": {"type": "choice", "choice": "a.b", "confidence": 0.1 + 0.2, "probabilities": {"a.b": 1 / 3, '"': 2 / 3},
              "x_label_mass": 5e-324, "x_standard_error": {"a.b": 0.1, '"': 0.1}},
    "is.late": {"type": "noul", "noul": 1e-17, "x_label_mass": 1.0, "x_standard_error": 0.25,
                "x_scaled": {"by": "type", "temperature": 1.25}},
    "": {"type": "score", "score": 0.5, "confidence": 0.0, "legend": {"0": "low", "1": {"x": 1}},
         "probabilities": {"0": 0.5, "1": 0.5}, "x_label_mass": 0.5},
}  # fmt: skip
RUN: list[dict[str, Any]] = [
    {"index": 0, "request": "a-b-c", "id": "x", "model": "m", "answers": ANSWERS,
     "usage": {"input_tokens": 2**53 + 1, "output_tokens": 3, "x_fell_back": False}, "x_calibration": "12e5"},
    {"index": 1, "request": "a-b-d", "id": "y", "error": {"field": None, "message": 'no "é"\n,', "type": "t"}},
    {"index": 2, "request": "a-b-e", "model": "m", "text": "a\r\nb", "finish_reason": "stop",
     "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5]}, "usage": {"prompt_tokens": 1}},
]  # fmt: skip
HEADS = [{"ramet": "1", "settings": {"dtype": "é"}}, {"ramet": "2"}]


def without_nothing(value: Any) -> Any:
    """What a table leaves of a row: an empty cell is no value."""
    if not isinstance(value, dict):
        return value
    return {name: without_nothing(inner) for name, inner in value.items() if inner is not None}


@pytest.mark.parametrize("ending", FORMS)
def test_rows_of_a_run_come_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"r{ending}"
    write_rows(path, RUN, HEADS)
    heads: list[dict[str, Any]] = []
    rows = [row for _, row in numbered_rows(path, heads=heads)]
    assert heads == HEADS
    if FORMS[ending].is_table:
        assert [without_nothing(row) for row in rows] == [without_nothing(row) for row in RUN]
    else:
        assert rows == RUN
    assert path.read_bytes()[:2] == b"\x1f\x8b" or not FORMS[ending].gzipped
    before = path.read_bytes()
    write_rows(path, RUN, HEADS)
    assert path.read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 1 + (FORMS[ending].kind == "csv")


def test_columns_of_answers(tmp_path: Path) -> None:
    """One a question and statistic, or one an option."""
    write_rows(tmp_path / "r.csv", RUN)
    header = next(csv.reader([(tmp_path / "r.csv").read_text().partition("\n")[0]]))
    assert header[:4] == ["index", "request", "id", "model"]
    assert header[4:10] == [
        "answers.topic.type", "answers.topic.choice", "answers.topic.confidence", 'answers.topic.probabilities."a.b"',
        r'answers.topic.probabilities."\""', "answers.topic.x_label_mass",
    ]  # fmt: skip
    assert 'answers."is.late".noul' in header
    assert 'answers."".legend' in header
    assert header[-3:] == ["error.field", "error.message", "error.type"]


def test_every_field_of_an_answer_has_its_place() -> None:
    """And is no name for what is kept; the time that an answer took is not written."""
    assert {*Decision.model_fields} - {"x_timing"} <= {*LAST}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2), "int"),
        ((True, None), "bool"),
        ((1, 0.5), "float"),
        (("x", 2), "text"),
        ((None, None), "text"),
        (([1], None), "text"),
        ((1, True), "text"),
        ((2**63, 1), "text"),
        ((2**53 + 1, 3), "long"),
        ((2**53 + 1, 0.5), "text"),
    ],
)
def test_types_of_columns(values: tuple[Any, Any], kind: str) -> None:
    for order in (values, values[::-1]):
        assert columns_of({"a": value} for value in order) == {"a": kind}


def test_types_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    write_rows(path, [{"id": 2**53 + 1, "s": "a", "n": [1]}, {"id": 2**63, "s": 2**63, "n": None}])
    table = pq.read_table(path)
    assert table.to_pylist() == [
        {"id": str(2**53 + 1), "s": "a", "n": "[1]"}, {"id": str(2**63), "s": str(2**63), "n": None}
    ]  # fmt: skip
    write_rows(path, [{"id": 2**53 + 1}, {"id": None}])
    assert pq.read_table(path).schema.field("id").type == pa.int64()
    assert list(read_rows(path)) == [{"id": 2**53 + 1}, {}]


@pytest.mark.parametrize("ending", FORMS)
def test_no_rows(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"r{ending}"
    write_rows(path, [])
    if FORMS[ending].kind != "csv":
        assert list(read_rows(path)) == []


SOURCE = {
    "id": ["a", "b", "c", "d"],
    "when": pa.array([1_700_000_000_000_000_001, None, 3, 4], pa.timestamp("ns")),
    "price": [float("nan"), 2.5, None, math.inf],
    "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
    "raw": [b"\xff", None, b"", b"a"],
    "many": [[1, 2], None, [], [None]],
    "gold.topic": ["t", None, "u", "v"],
    "big": [2**53 + 1, None, -(2**63), 0],
}
KEPT = ("when", "price", "kind", "raw", "many", "gold.topic", "big")


def spelled(table: Any) -> str:
    """Equal for equal tables, NaN and nanoseconds included."""
    return repr([table["when"].cast(pa.string()).to_pylist(), table.drop(["when"]).to_pylist()])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_kept_columns_of_parquet_keep_their_types(tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = tmp_path / "s.parquet", tmp_path / "r.parquet"
    monkeypatch.setattr("ramet.rows.parquet_writer.BATCH", 1)
    monkeypatch.setattr("ramet.rows.parquet_writer._GROUP", 2)
    pq.write_table(pa.table(SOURCE), source, row_group_size=2)
    rows = RUN[: len(range(0, 4, every))]
    write_rows(path, rows, HEADS, KeptColumns(source, KEPT, every))
    found, table = pq.read_table(path), pa.table(SOURCE).take(list(range(0, 4, every))[: len(rows)])
    assert spelled(found.select(KEPT)) == spelled(table.select(KEPT))
    assert [field.type for field in found.select(KEPT).schema] == [field.type for field in table.select(KEPT).schema]
    assert found.column_names[:5] == ["index", "request", "id", "when", "price"]
    assert found["index"].to_pylist() == [*range(len(rows))]


def test_kept_columns_of_csv_keep_their_text(tmp_path: Path) -> None:
    source = tmp_path / "s.csv"
    source.write_text('id,price,"a,b"\n1,1.50,\n2,NaN,"x\ny"\n3,,""\n')
    for name in ("r.csv", "r.parquet"):
        write_rows(tmp_path / name, RUN, (), KeptColumns(source, ("price", "a,b")))
        rows = list(read_rows(tmp_path / name))
        assert [(row["price"], row["a,b"]) for row in rows] == [("1.50", ""), ("NaN", "x\ny"), ("", "")]


def test_kept_columns_of_parquet_as_text(tmp_path: Path) -> None:
    source, path = tmp_path / "s.parquet", tmp_path / "r.csv.gz"
    pq.write_table(pa.table({name: SOURCE[name] for name in SOURCE if name != "raw"}), source)
    write_rows(path, RUN, (), KeptColumns(source, ("when", "price", "kind", "many", "big")))
    first, _second, third = csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines())
    assert (first["when"], first["price"], first["kind"], first["many"], first["big"]) == (
        "2023-11-14 22:13:20.000000001", "nan", "x", "[1, 2]", str(2**53 + 1)
    )  # fmt: skip
    assert (third["when"], third["price"], third["big"]) == ("1970-01-01 00:00:00.000000003", "", str(-(2**63)))


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    source, path = tmp_path / "s.csv", tmp_path / "r.csv"
    source.write_text("model\nx\n")
    with pytest.raises(InvalidRequest, match=r"r.csv: there are two columns 'model': rename that of the input"):
        write_rows(path, RUN, (), KeptColumns(source, ("model",)))
    assert not path.exists()


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("mine")
    with pytest.raises(InvalidRequest, match=r"r.jsonl: Out of range float values"):
        write_rows(path, [{"id": float("nan")}])
    assert path.read_text() == "mine"
    with pytest.raises(InvalidRequest, match="rows are read and written by"):
        write_rows(tmp_path / "r.xlsx", [])


def test_heads_beside_a_csv(tmp_path: Path) -> None:
    path, beside = tmp_path / "r.csv", tmp_path / "r.csv.run.json"
    write_rows(path, RUN, HEADS)
    assert json.loads(beside.read_text()) == HEADS
    for content, message in (("{", "r.csv.run.json is no JSON"), ("{}", "r.csv.run.json has no heads of runs")):
        beside.write_text(content)
        with pytest.raises(InvalidRequest, match=message):
            list(read_rows(path))
    write_rows(path, RUN)
    assert not beside.exists()
    assert len(list(read_rows(path))) == 3


names = st.text(st.sampled_from('ab."\\é ,'), max_size=4)


@given(st.dictionaries(names, st.dictionaries(names, st.integers(), min_size=1, max_size=3), max_size=3))
def test_paths_of_columns(answers: dict[str, dict[str, int]]) -> None:
    row = {"id": 1, "answers": answers, "a.b": 3} if answers else {"a.b": 3}
    assert nested(flat(row)) == row


@pytest.mark.parametrize(
    ("column", "steps"),
    [("answers.a.noul", ("answers", "a", "noul")), ('answers."a.b".noul', ("answers", "a.b", "noul")),
     ("a.b", ("a.b",)), ("answers..x", ("answers..x",)), ('answers."a', ('answers."a',)),
     ('gold."\\x"', ('gold."\\x"',))],
)  # fmt: skip
def test_what_is_a_path(column: str, steps: tuple[str, ...]) -> None:
    assert steps_of(column) == steps
    assert column_of(steps) == column or len(steps) == 1
