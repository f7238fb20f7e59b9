"""The folders of the bench: who imports whom, and that nothing private of the engine is used."""

from __future__ import annotations

import ast

import pytest
from fixtures.import_graph import imports_of, source_files

MODULES = {name: path for name, path in source_files().items() if name.startswith("ramet.bench.")}
SHARED = ("core", "peers")  # peers may use core
# Of other engines, which have no public names for it, and of Python.
FOREIGN = {
    "_attn_implementation", "_experts_implementation", "_from_config", "_stage_flat", "_async_model_forward", "_exit",
}  # fmt: skip
MAX_LINES = 300


def folder(module: str) -> str:
    return module.split(".")[2]


def test_every_file_lies_in_a_folder() -> None:
    assert [path.name for name, path in MODULES.items() if path.parent.name == "bench"] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_bench_imports_no_other(module: str) -> None:
    """Whatever two of them use lies in `core` or `peers`."""
    allowed = {folder(module), *(SHARED[:1] if folder(module) in SHARED else SHARED)}
    targets = {i.target for i in imports_of(module) if i.target in MODULES}
    assert {folder(target) for target in targets} <= allowed


def test_no_circles() -> None:
    """Not even through imports that are made late, or for types."""
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in {i.target for i in imports_of(module) if i.target in MODULES and i.target != module}:
                visit(target, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_nothing_private_of_others_is_used(module: str) -> None:
    found = private(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    assert [name for name in found if name not in FOREIGN or folder(module) != "peers"] == []


def private(tree: ast.AST) -> list[str]:
    """Attributes with one underscore of anything but `self`, `cls` and `super()`."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return [
        node.attr
        for node in attributes
        if node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    ]


def test_what_is_private_is_found() -> None:
    code = "engine._runner.run(x); self._own; super()._own; x.__class__; self.engine._runner"
    assert private(ast.parse(code)) == ["_runner", "_runner"]


def test_files_are_short() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}
