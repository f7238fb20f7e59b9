"""What two runs differ in, by what their heads say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ramet import cli
from ramet.agree.differences import differences
from ramet.rows.write import write_rows

ROW = {"index": 0, "request": "a-b-c", "id": 1, "model": "m", "answers": {"q": {"type": "noul", "noul": 0.5}}}
HEAD = {"ramet": "1", "commit": "abc", "machine": {"cpu": "x", "cores": "2"}, "settings": {"ops": {}, "threads": 2}}


def test_by_hand() -> None:
    other = {**HEAD, "commit": "def", "machine": {"cpu": "y", "cores": "2"}, "settings": {"ops": {"a": "b"}}}
    found = differences([HEAD], [other])
    assert found is not None
    assert [(each.name, each.a, each.b) for each in found] == [
        ("commit", ("abc",), ("def",)),
        ("machine.cpu", ("x",), ("y",)),
        ("settings.ops", ({},), ({"a": "b"},)),
        ("settings.threads", (2,), (None,)),
    ]


def test_what_one_run_alone_says_is_one_difference() -> None:
    found = differences([HEAD, HEAD], [{"ramet": "1", "commit": "abc", "server": "x"}])
    assert found is not None
    assert [(each.name, each.a, each.b) for each in found] == [
        ("machine", (HEAD["machine"],), (None,)),
        ("settings", (HEAD["settings"],), (None,)),
        ("server", (None,), ("x",)),
    ]


def test_a_run_that_went_on_elsewhere() -> None:
    found = differences([HEAD, {**HEAD, "commit": "def"}], [HEAD])
    assert found is not None
    assert [(each.name, each.a, each.b) for each in found] == [("commit", ("abc", "def"), ("abc",))]


def test_equal_runs_and_runs_that_say_nothing() -> None:
    assert differences([HEAD], [HEAD]) == []
    assert differences([HEAD], []) is None
    assert differences([], []) is None


def compared(directory: Path, a: Any, b: Any, ending: str = ".jsonl") -> tuple[str, Any]:
    for name, heads in (("a", a), ("b", b)):
        write_rows(directory / f"{name}{ending}", [ROW], heads)
    words = [*(str(directory / f"{name}{ending}") for name in "ab"), "--json", str(directory / "o.json")]
    result = CliRunner().invoke(cli.main, ["agree", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout, json.loads((directory / "o.json").read_text())


@pytest.mark.parametrize("ending", [".jsonl", ".csv.gz", ".parquet"])
def test_what_is_printed(tmp_path: Path, ending: str) -> None:
    shown, found = compared(tmp_path, [HEAD], [{**HEAD, "commit": "\x1b[31m" + "x" * 99}, HEAD], ending)
    assert "what the runs differ in" in shown
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("commit")]
    assert line.split()[:2] == ["commit", "abc"]
    assert "…; then abc" in line
    assert "\x1b" not in shown
    assert found["differences"] == [{"name": "commit", "a": ["abc"], "b": ["\x1b[31m" + "x" * 99, "abc"]}]
    assert found["a"]["heads"] == [HEAD]


def test_what_is_not_known(tmp_path: Path) -> None:
    shown, found = compared(tmp_path, [HEAD], [])
    assert "b does not say how it was made, so what the runs differ in is not known" in shown
    assert found["differences"] is None
    shown, _ = compared(tmp_path, [], [])
    assert "not known" not in shown


def test_ids_of_csv_are_those_of_json(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [ROW], [HEAD])
    write_rows(tmp_path / "b.csv", [ROW], [HEAD])
    (tmp_path / "gold.csv").write_text("id,gold.q\n1,TRUE\n2,\n")
    words = ["agree", str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv"), "--gold", str(tmp_path / "gold.csv")]
    result = CliRunner().invoke(cli.main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert "1 of 1 label used" in result.stdout
    assert "differ in nothing" in result.stdout
