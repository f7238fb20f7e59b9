"""Every command line of ours in the documents names a command that exists, and options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from fixtures.doc_page import pages, sections

from ramet import cli

PAGES = [page for page in pages() if page != "docs/cli.md"]


def lines(page: str) -> Iterator[tuple[str, list[str]]]:
    """Place and words of each command line, in blocks and in spans of code."""
    for s in sections(page):
        for block in s.blocks:
            if block.language in ("sh", ""):
                for line in block.text.replace("\\\n", " ").splitlines():
                    yield block.place, _words(line)
        for code in re.findall(r"`(ramet [^`]+)`", s.prose):
            yield page, _words(" ".join(code.split()))


def _words(line: str) -> list[str]:
    """From `ramet` on, up to where a pipe or another command begins."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a part of a longer text
        return []
    start = next((i for i, word in enumerate(words) if word == "ramet"), len(words))
    end = next((i for i, word in enumerate(words) if i > start and word in ("|", "&&", ";", ">", "&")), len(words))
    return words[start + 1 : end]


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    found: click.Command = cli.main
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        inner = found.get_command(click.Context(found), words[0])
        assert inner is not None, words
        found, words = inner, words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    for place, words in lines(page):
        command, rest = _command(words)
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= known, (place, words)


def test_command_lines_are_found() -> None:
    found = [words[0] for page in PAGES for _, words in lines(page) if words]
    assert {"serve", "decide", "run", "agree", "bench", "generate", "doctor", "warmup"} <= set(found)
