"""The output file: mended, checked, appended to, held by one run."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ramet.cli.output import Output

ROW = '{"index": 0, "request": "x"}\n'


@pytest.mark.parametrize("tail", ["", "{", '{"index": 1, "request": "y"}', "é" * 100_000])
def test_a_half_written_line_is_cut(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(ROW + tail)
    with Output(path, overwrite=False) as out:
        assert out.n_mended_bytes == len(tail.encode())
        out.append({"index": 1, "request": "ü"})
        assert [row["index"] for row in out.rows()] == [0, 1]
    assert path.read_text() == ROW + '{"index": 1, "request": "ü"}\n'


def test_a_file_without_any_line_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("x" * 200_000)
    with Output(path, overwrite=False) as out:
        assert list(out.rows()) == []
    assert path.read_text() == ""


def test_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(ROW)
    with Output(path, overwrite=True) as out:
        assert list(out.rows()) == []


@pytest.mark.parametrize(
    "line", ["not json", "[]", "{}", '{"index": 1, "request": "x"}', '{"index": 0}', '{"index": 0, "request": 1}', ""]
)
def test_a_strange_line_is_refused_and_left(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(line + "\n")
    with (
        Output(path, overwrite=False) as out,
        pytest.raises(click.UsageError, match=r"line 1 of .* was not written by"),
    ):
        list(out.rows())
    assert path.read_text() == line + "\n"


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Output(path, overwrite=False):
        path.write_text(ROW)
        with pytest.raises(click.UsageError, match="another run"):
            Output(path, overwrite=True)
        assert path.read_text() == ROW
    Output(path, overwrite=False).__exit__(None, None, None)
