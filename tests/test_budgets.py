"""Budgets: how long a file may be, and that a class name is given once. The lists of exceptions can only shrink."""

from __future__ import annotations

import ast
from collections import defaultdict

from fixtures.import_graph import PACKAGE, ROOT

MAX_LINES = 300
MAX_README_LINES = 120
MAX_BENCH_LINES = 6_090  # of all files together but those of `bench quality`; 5,500 is wanted

# Files that are longer still, and how long they may be. A file that has become short enough must leave the list.
LONG: dict[str, int] = {}
# Class names that are given twice outside the bench still. A name that is given once must leave the list.
TWICE: set[str] = set()


def is_kernel(path: str) -> bool:
    """A kernel is one piece of code: cutting it would separate what must be read together."""
    return path.startswith("ops/") and path.endswith(("/triton.py", ".cpp", ".h"))


def n_lines() -> dict[str, int]:
    """The lines of each file of the package, by its path below it."""
    paths = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.cpp"), *PACKAGE.rglob("*.h")]
    return {path.relative_to(PACKAGE).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}


def test_files_are_short() -> None:
    long = {path for path, n in n_lines().items() if n > MAX_LINES and not is_kernel(path)}
    assert long - set(LONG) == set(), f"more than {MAX_LINES} lines: split the file by subject"
    assert set(LONG) - long == set(), "short enough now: take it off the list"


def test_the_bench_is_no_second_engine() -> None:
    counted = [n for path, n in n_lines().items() if path.startswith("bench/") and "quality" not in path]
    assert sum(counted) <= MAX_BENCH_LINES


def test_no_exception_grows() -> None:
    counted = n_lines()
    assert {path: counted[path] for path, most in LONG.items() if counted[path] > most} == {}


def test_a_class_name_is_given_once() -> None:
    homes = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "bench" in path.relative_to(PACKAGE).parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.relative_to(PACKAGE).as_posix())
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in TWICE} == {}, (
        "give one of them a name of its own"
    )
    assert TWICE - set(twice) == set(), "given once now: take it off the list"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES
