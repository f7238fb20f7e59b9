"""The imports of source files, read from their syntax trees: nothing is imported to find them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ramet"
TESTS = ROOT / "tests"


@dataclass(frozen=True)
class Import:
    """`target` is imported by `module` at `line`. `lazy`: in a function. `for_types`: under TYPE_CHECKING."""

    module: str
    target: str
    line: int
    lazy: bool
    for_types: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def source_files() -> dict[str, Path]:
    """Every module of the package by its dotted name, and the tests' modules by their plain ones."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    for path in sorted(TESTS.glob("*.py")):
        files[path.stem] = path
    return files


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """All imports of a module of ours, in all three ways."""
    tree = ast.parse(source_files()[module].read_text(encoding="utf-8"))
    return tuple(_found(module, tree, lazy=False, for_types=False))


@cache
def reached(module: str) -> frozenset[str]:
    """What importing a module imports too: modules of ours, and the top names of others."""
    seen: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in source_files():
            continue
        left += parents(name)
        left += [i.target if i.target in source_files() else top(i.target) for i in at_import(name)]
    return frozenset(seen)


def at_import(module: str) -> Iterator[Import]:
    """The imports that run when the module is imported."""
    return (i for i in imports_of(module) if not i.lazy and not i.for_types)


def parents(module: str) -> list[str]:
    """The packages that a module lies in."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def top(target: str) -> str:
    return target.partition(".")[0]


def _found(module: str, node: ast.AST, *, lazy: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name.removeprefix("tests."), child.lineno, lazy, for_types)
        elif isinstance(child, ast.ImportFrom):
            assert child.module, f"{module}:{child.lineno}: a relative import"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}".removeprefix("tests.")
                target = inner if inner in source_files() else child.module.removeprefix("tests.")
                yield Import(module, target, child.lineno, lazy, for_types)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _found(module, ast.Module(child.body, []), lazy=lazy, for_types=True)
            yield from _found(module, ast.Module(child.orelse, []), lazy=lazy, for_types=for_types)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _found(module, child, lazy=lazy or inside, for_types=for_types)
