"""The pages of the documentation as sections and fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from import_graph import ROOT

_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
_ANSWERS = ("json", "text")


@dataclass(frozen=True)
class Block:
    """A fenced block. `not_run`: why not, as a comment in the line before says."""

    place: str
    language: str
    text: str
    not_run: str | None


@dataclass
class Section:
    """What stands below a heading, up to the next of any level: prose, and the blocks in it."""

    heading: str
    prose: str = ""
    blocks: list[Block] = field(default_factory=list)

    @property
    def code(self) -> list[str]:
        """The spans of code in the prose."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    @property
    def rows(self) -> list[list[str]]:
        """The lines of the prose's tables, heads left out, in cells without the marks of code."""
        lines = [line for line in self.prose.splitlines() if line.startswith("|")]
        heads = {i for i, (_, rule) in enumerate(pairwise(lines)) if rule.startswith("|---")}
        kept = [line for i, line in enumerate(lines) if i not in heads and not line.startswith("|---")]
        return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in kept]

    def examples(self) -> Iterator[tuple[Block, Block | None]]:
        """Each block that can be run, and the one behind it that shows what it prints."""
        for block, following in pairwise([*self.blocks, None]):
            if block is not None and block.language not in _ANSWERS:
                yield block, following if following and following.language in _ANSWERS else None


@cache
def sections(page: str) -> tuple[Section, ...]:
    """The sections of a page, in order. `page` is its path below the root."""
    found = [Section("")]
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end = lines.index("```", at + 1)
            comment = _NOT_RUN.fullmatch(lines[at - 1])
            text = "\n".join(lines[at + 1 : end])
            found[-1].blocks.append(Block(f"{page}:{at + 1}", line[3:], text, comment and comment[1]))
            at = end
        elif line.startswith("#"):
            found.append(Section(line.lstrip("# ")))
        else:
            found[-1].prose += line + "\n"
        at += 1
    return tuple(found)


def section(page: str, heading: str) -> Section:
    """The one section of that heading."""
    (found,) = (s for s in sections(page) if s.heading == heading)
    return found


def examples(page: str, language: str) -> list[tuple[Section, Block, Block | None]]:
    """The examples in a language that are to be run."""
    found = [(s, block, answer) for s in sections(page) for block, answer in s.examples()]
    return [(s, block, answer) for s, block, answer in found if block.language == language and not block.not_run]
