"""docs/security.md has the limits that the code has, and names the tests' programs as they are."""

from __future__ import annotations

import importlib.util
import re

import pytest
from fixtures.doc_page import sections

from ramet.memory import EVERY_S
from ramet.problems import MAX_PROBLEMS
from ramet.quoting import QUOTED
from ramet.server.bodies import MAX_BODIES

PROSE = " ".join("".join(s.prose for s in sections("docs/security.md")).split())


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ("All bodies together are at most {} of that size", MAX_BODIES),
        ("Errors list {} problems at most", MAX_PROBLEMS),
        ("quote {} characters of a name", QUOTED),
        ("at most every {} seconds", int(EVERY_S)),
    ],
)
def test_limits_are_the_codes(words: str, limit: int) -> None:
    assert words.format(limit) in PROSE


def test_its_programs_are_there() -> None:
    commands = "\n".join(block.text for s in sections("docs/security.md") for block in s.blocks)
    modules = re.findall(r"python -m ([\w.]+)", commands)
    assert modules
    assert all(importlib.util.find_spec(module) for module in modules)
