"""Page: a page of the documentation, as sections and fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from import_graph import ROOT

_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block. `not_run`: why not, as the comment in front of it says. `answer`: the block right behind it
    under the same heading, if that is `json` or `text`: what running this one prints."""

    page: str
    line: int
    heading: str
    language: str
    text: str
    not_run: str | None = None
    answer: Block | None = None

    @property
    def place(self) -> str:
        return f"docs/{self.page}:{self.line}"


@dataclass
class Section:
    """What stands under a heading, up to the next one of any level: prose without fences, and blocks."""

    level: int
    heading: str
    prose: str = ""
    blocks: list[Block] = field(default_factory=list)

    @property
    def code(self) -> list[str]:
        """The spans of code in the prose."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    def rows(self) -> list[list[str]]:
        """Cells of the tables' lines, without heads and rules, and without the marks of code."""
        lines = [line.strip("| ").replace("`", "") for line in self.prose.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.split(" |")] for line in lines]
        rules = [i for i, row in enumerate(cells) if set("".join(row)) <= {"-", "|"}]
        return [row for i, row in enumerate(cells) if i not in rules and i + 1 not in rules]


@cache
def sections(page: str) -> tuple[Section, ...]:
    """The sections of docs/PAGE in order."""
    found: list[Section] = []
    lines = iter(enumerate((ROOT / "docs" / page).read_text(encoding="utf-8").splitlines(), 1))
    reason = None
    for number, line in lines:
        if heading := re.fullmatch(r"(#+) (.+)", line):
            found.append(Section(len(heading[1]), heading[2]))
        elif line.startswith("```"):
            text = "\n".join(inner for _, inner in iter(lambda: next(lines), None) if not _ends(inner, lines, found))
            found[-1].blocks.append(Block(page, number, found[-1].heading, line[3:], text, reason))
        elif found:
            found[-1].prose += line + "\n"
        reason = match[1] if (match := _NOT_RUN.fullmatch(line)) else None
    return tuple(found)
