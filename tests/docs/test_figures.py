"""The index of the figures is that of the folder, and true."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import pytest
from fixtures.import_graph import ROOT

FIGURES = ROOT / "docs" / "figures"
INDEX = "README.md"


class Line(NamedTuple):
    file: str
    command: str
    commit: str
    page: str


LINES = [
    Line(*found)
    for found in re.findall(
        r"^\| `(\S+)` \| (.+?) \| (\w+\+?) \| \[.+?\]\((\S+)\) \|$",
        (FIGURES / INDEX).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
]


def test_the_index_has_every_file_once() -> None:
    assert sorted(line.file for line in LINES) == sorted(p.name for p in FIGURES.iterdir() if p.name != INDEX)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.file)
def test_a_figure_is_shown_where_the_index_says(line: Line) -> None:
    assert f"figures/{line.file})" in (FIGURES / line.page).read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [line for line in LINES if line.file.endswith(".json")], ids=lambda line: line.file)
def test_a_figure_is_of_the_command_and_the_commit_that_the_index_says(line: Line) -> None:
    found = json.loads((FIGURES / line.file).read_text(encoding="utf-8"))
    assert found["machine"]["commit"] == line.commit
    assert line.command.startswith(f"`{found['bench'].split()[0]}")
