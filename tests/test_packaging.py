"""What is imported is declared, and what is declared is in the lock."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from fixtures.import_graph import ROOT, imports_of, source_files, top

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUNTIME, DEV = PROJECT["dependencies"], PROJECT["optional-dependencies"]["dev"]
EXTRAS = [each for name in ("calibrate", "parquet", "plot") for each in PROJECT["optional-dependencies"][name]]


def normal(requirement: str) -> str:
    """The name of a requirement, as indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def imported(*, by_tests: bool) -> set[str]:
    """The distributions that our modules import, lazily too."""
    modules = [m for m in source_files() if by_tests or top(m) == "ramet"]
    names = {top(i.target) for m in modules for i in imports_of(m)} - set(sys.stdlib_module_names)
    names -= {top(m) for m in source_files()} | {"training", "compression"}  # the latter is of Python 3.14
    return {normal(distribution) for name in names for distribution in packages_distributions().get(name, [name])}


def locked(name: str) -> dict[str, str]:
    """Versions by name. Each package has hashes, and nothing else: no index, path or local mark."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[^\s#])", re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE).strip())
    pin = re.compile(r"([a-z0-9-]+)==([\w.]+)(?: ; [^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)")
    found = [pin.fullmatch(entry) for entry in entries]
    assert [entry for entry, match in zip(entries, found, strict=True) if match is None] == []
    return {match[1]: match[2] for match in found if match}


def test_imports_are_declared() -> None:
    assert imported(by_tests=False) - {"triton"} <= {*map(normal, RUNTIME + EXTRAS)}


def test_the_tests_imports_are_declared() -> None:
    assert imported(by_tests=True) - {"triton"} <= {*map(normal, RUNTIME + DEV)}


def test_what_is_declared_is_needed() -> None:
    """jinja2 renders transformers' chat templates, which does not itself ask for it; uvicorn takes the others."""
    assert {*map(normal, RUNTIME)} - imported(by_tests=False) <= {"jinja2", "httptools", "uvloop"}


def test_the_locks_hold_what_is_declared() -> None:
    runtime, dev = locked("runtime.lock"), locked("dev.lock")
    assert {*map(normal, RUNTIME)} - {"torch"} <= runtime.keys()
    assert {*map(normal, DEV)} <= dev.keys()
    assert runtime.items() <= dev.items()


def test_torch_is_beside_the_locks() -> None:
    """Its builds lie on several indexes, each with other hashes: a hash in a lock would tie it to one of them."""
    assert (ROOT / "requirements" / "torch.in").read_text().startswith("torch==2.13.0 ")
    for name in ("runtime.lock", "dev.lock"):
        assert "torch" not in locked(name)
        assert {"sympy", "networkx", "jinja2", "filelock", "fsspec"} <= locked(name).keys()  # what torch needs besides


@pytest.mark.parametrize("path", ["ramet/py.typed", ".ci/run", "LICENSE", "README.md"])
def test_files_that_others_rely_on(path: str) -> None:
    assert (ROOT / path).is_file()


def test_native_sources_are_packaged() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    endings = {Path(pattern).suffix for pattern in data["*"]} | {".py"}
    files = [p for p in (ROOT / "ramet").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert {path.suffix for path in files} <= endings
