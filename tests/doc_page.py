"""The pages of the documentation as sections and fenced blocks, and what is printed beside what they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from import_graph import ROOT

_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
_ANSWERS = ("json", "text")
_NUMBER = re.compile(r"\d+\.\d*(?:e-?\d+)?")
SIGNIFICANT = 0.01  # of a number as large: what three digits show


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


def assert_alike(printed: str, shown: Block) -> None:
    """The same words, and the same numbers: where they have a decimal point to one unit of the last digit that either
    shows. Examples run in float32, whose sums in another processor's order differ a thousand times less; but a digit
    may turn over."""
    assert _NUMBER.sub("N", printed).split() == _NUMBER.sub("N", shown.text).split(), shown.place
    for ours, theirs in zip(_NUMBER.findall(printed), _NUMBER.findall(shown.text), strict=True):
        n_digits = max(len(text.partition(".")[2]) for text in (ours, theirs))
        is_close = abs(float(ours) - float(theirs)) < 1.01 * 10**-n_digits
        assert is_close, f"{shown.place}: {theirs} is {ours} (`make examples`)"


def assert_numbers_alike(numbers: list[float], shown: Block) -> None:
    """Of JSON, whose first numbers with a decimal point are these to SIGNIFICANT."""
    told = [float(text) for text in _NUMBER.findall(shown.text)][: len(numbers)]
    for ours, theirs in zip(numbers, told, strict=True):
        assert abs(ours - theirs) < SIGNIFICANT * abs(ours), f"{shown.place}: {theirs} is {ours:.3g} (`make examples`)"


def write(printed: str, shown: Block) -> None:
    """Into the page, in place of what it shows."""
    path = ROOT / shown.place.partition(":")[0]
    fenced = "```{}\n{}\n```"
    old = fenced.format(shown.language, shown.text)
    new = fenced.format(shown.language, "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()))
    text = path.read_text(encoding="utf-8")
    assert old == new or text.count(old) == 1, shown.place
    path.write_text(text.replace(old, new), encoding="utf-8")


def write_numbers(numbers: list[float], n_tokens: list[int], shown: Block) -> None:
    """In place of the first ones with a decimal point, to three digits, and of the tokens of inputs."""
    floats, counts = (f"{number:.3g}" for number in numbers), map(str, n_tokens)
    text = _NUMBER.sub(lambda match: next(floats, match[0]), shown.text)
    write(re.sub(r'(?<="input_tokens": )\d+', lambda match: next(counts, match[0]), text), shown)
