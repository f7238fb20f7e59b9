"""The output file: looked at, mended, appended to, held by one run, and replaced when all is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from ramet.cli.output import OutputFile, line_of
from ramet.errors import InvalidRequest
from ramet.rows import numbered_rows
from ramet.rows.form import FORMS
from ramet.rows.write import write_rows

ROW = '{"index": 0, "request": "x"}\n'
NEXT = {"index": 1, "request": "ü"}


@pytest.mark.parametrize("tail", ["", "{", '{"index": 1, "request": "y"}', '{"index": 1, "request": "' + "é" * 100_000])
def test_a_half_written_line_is_cut(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(ROW + tail)
    with OutputFile(path, overwrite=False) as out:
        assert [*out.rows()] == [(0, "x")]
        assert path.read_text() == ROW + tail
        assert out.mend() == len(tail.encode())
        out.append(line_of(NEXT))
        assert [*out.rows()] == [(0, "x"), (1, "ü")]
    assert path.read_text() == ROW + '{"index": 1, "request": "ü"}\n'


def test_a_file_whose_only_line_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(ROW[:20])
    with OutputFile(path, overwrite=False) as out:
        assert list(out.rows()) == []
        assert out.mend() == 20
    assert path.read_text() == ""


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, (1 << 16) + 2, 1 << 17])
def test_rows_of_any_length(tmp_path: Path, size: int) -> None:
    path = tmp_path / "out.jsonl"
    rows = [line_of({"index": n, "request": "x", "text": ""}) for n in range(3)]
    path.write_bytes(b"".join(row[:-3] + b"a" * (size - len(row)) + row[-3:] for row in rows))
    with OutputFile(path, overwrite=False) as out:
        assert [*out.rows()] == [(n, "x") for n in range(3)]
        assert out.mend() == 0


@pytest.mark.parametrize("line", ["x" * 200_000, '{"index": 7, "requ', "[", "\0\0", '{"index": 0, "state": '])
def test_half_a_line_that_no_run_wrote_is_refused_and_left(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(line)
    with (
        OutputFile(path, overwrite=False) as out,
        pytest.raises(click.UsageError, match=r"the half line at the end of .* was not written by"),
    ):
        list(out.rows())
    assert path.read_text() == line


@pytest.mark.parametrize(
    "line",
    ["not json", "[]", "{}", '{"index": 1, "request": "x"}', '{"index": 0}', '{"index": 0, "request": 1}', "",
     '{"index": 0, "request": "x"'],
)  # fmt: skip
def test_a_strange_line_is_refused_and_left(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(line + "\n{")
    with (
        OutputFile(path, overwrite=False) as out,
        pytest.raises(click.UsageError, match=r"line 1 of .* was not written by"),
    ):
        list(out.rows())
    assert path.read_text() == line + "\n{"


HEAD, OTHER = {"ramet": "1"}, {"ramet": "2"}
FIRST = {"index": 0, "request": "x"}


def test_a_head_is_written_where_it_is_another(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for n, head in enumerate((HEAD, HEAD, OTHER, HEAD)):
        with OutputFile(path, overwrite=False) as out:
            assert len([*out.rows()]) == 2 * n
            assert out.mend() == 0
            out.head = head
            for index in (2 * n, 2 * n + 1):
                out.append(line_of({"index": index, "request": "x"}))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [n for n, line in enumerate(lines) if "run" in line] == [0, 5, 8]


@pytest.mark.parametrize("cut", [1, 5, 10, 17, 18])
def test_half_a_head_is_cut(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line_of({"run": HEAD})[:cut])
    with OutputFile(path, overwrite=False) as out:
        assert [*out.rows()] == []
        assert out.mend() == cut
        out.head = HEAD
        out.append(line_of(FIRST))
    assert path.read_bytes() == line_of({"run": HEAD}) + line_of(FIRST)


@pytest.mark.parametrize("line", ['{"run": {"a": 1}, "b": {}}', '{"run": {"a": }}', '{"run": 1}'])
def test_what_is_no_head_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(line + "\n")
    with OutputFile(path, overwrite=False) as out, pytest.raises(click.UsageError, match="line 1 of"):
        list(out.rows())
    assert path.read_text() == line + "\n"


MADE = [ending for ending, form in FORMS.items() if form.is_table or form.gzipped]


@pytest.mark.parametrize("ending", MADE)
def test_what_is_no_plain_json_is_made_in_the_end(tmp_path: Path, ending: str) -> None:
    path, part = tmp_path / f"out{ending}", tmp_path / f"out{ending}.part"
    for n in range(2):  # it was stopped
        with OutputFile(path, overwrite=False) as out:
            assert len([*out.rows()]) == n
            out.mend()
            out.head = (HEAD, OTHER)[n]
            out.append(line_of({"index": n, "request": "x", "text": "é"}))
            assert part.exists()
            assert not path.exists()
    with OutputFile(path, overwrite=False) as out:
        assert len([*out.rows()]) == 2
        out.finish()
    assert not part.exists()
    heads: list[Any] = []
    assert [row["text"] for _, row in numbered_rows(path, heads=heads)] == ["é", "é"]
    assert heads == [HEAD, OTHER]
    before = path.read_bytes()
    with OutputFile(path, overwrite=False) as out:  # goes on with what is there, and finds nothing to do
        assert [*out.rows()] == [(0, "x"), (1, "x")]
        assert out.mend() == 0
        out.finish()
    assert (path.read_bytes(), part.exists()) == (before, False)
    with OutputFile(path, overwrite=False) as out:  # and appends
        assert len([*out.rows()]) == 2
        out.head = OTHER
        out.append(line_of({"index": 2, "request": "y", "text": "z"}))
        assert path.read_bytes() == before
    with OutputFile(path, overwrite=False) as out:
        assert [*out.rows()] == [(0, "x"), (1, "x"), (2, "y")]
        out.finish()
    heads.clear()
    assert [row["text"] for _, row in numbered_rows(path, heads=heads)] == ["é", "é", "z"]
    assert heads == [HEAD, OTHER]


@pytest.mark.parametrize("ending", MADE)
def test_what_others_made_is_refused_and_left(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    write_rows(path, [{"id": 1}])
    before = path.read_bytes()
    with pytest.raises(click.UsageError, match="was not written by `ramet run`; choose another file"):
        OutputFile(path, overwrite=False)
    assert (path.read_bytes(), [*tmp_path.glob("*.part")]) == (before, [])
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest):
        OutputFile(path, overwrite=False)
    with OutputFile(path, overwrite=True) as out:
        assert [*out.rows()] == []


def test_a_part_of_other_rows_is_not_gone_on_with(tmp_path: Path) -> None:
    path, part = tmp_path / "out.csv", tmp_path / "out.csv.part"
    write_rows(path, [FIRST])
    part.write_bytes(line_of(FIRST | {"request": "z"}) + line_of({"index": 1, "request": "z"}))
    with pytest.raises(click.UsageError, match="goes on from other rows than those of"):
        OutputFile(path, overwrite=False)
    assert part.exists()
    with OutputFile(path, overwrite=True) as out:
        assert len([*out.rows()]) == 2


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for first in (False, True):
        with OutputFile(path, overwrite=first):
            path.write_text(ROW)
            for second in (False, True):
                if first or second or path.exists():
                    with pytest.raises(click.UsageError, match="another run"):
                        OutputFile(path, overwrite=second)
            assert path.read_text() == ROW
    OutputFile(path, overwrite=False).__exit__(None, None, None)


@pytest.mark.parametrize("there", [True, False])
def test_what_replaces_is_written_beside(tmp_path: Path, there: bool) -> None:
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    if there:
        path.write_text("mine")
        path.chmod(0o640)
    with OutputFile(path, overwrite=True) as out:
        assert list(out.rows()) == []
        out.append(ROW.encode())
        assert part.read_text() == ROW
        assert path.exists() is there
    with OutputFile(path, overwrite=True) as out:  # it was stopped
        assert [*out.rows()] == [(0, "x")]
        out.finish()
    assert path.read_text() == ROW
    assert [*tmp_path.iterdir()] == [path]
    assert not there or path.stat().st_mode & 0o777 == 0o640


def test_a_part_with_nothing_in_it_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(ROW)
    OutputFile(path, overwrite=True).__exit__(None, None, None)
    assert [*tmp_path.iterdir()] == [path]


def test_a_part_of_others_is_refused(tmp_path: Path) -> None:
    part = tmp_path / "out.jsonl.part"
    part.write_text("mine")
    with (
        OutputFile(tmp_path / "out.jsonl", overwrite=True) as out,
        pytest.raises(click.UsageError, match=r"out.jsonl.part was not written by `ramet run`; move it away"),
    ):
        list(out.rows())
    assert part.read_text() == "mine"


def test_what_a_link_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there" / "out.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    for _ in range(2):
        with OutputFile(link, overwrite=True) as out:
            out.append(ROW.encode())
            out.finish()
        assert link.is_symlink()
        assert path.read_text() == ROW


@pytest.mark.parametrize("value", ["\ud800", float("inf"), float("nan"), {"a": ["\udfff"]}, {"\ud800": 1}])
def test_no_line_that_strict_json_has_not(value: object) -> None:
    with pytest.raises(ValueError, match=r"surrogates not allowed|not JSON compliant"):
        line_of({"id": value})
