"""The direction of imports, which docs/architecture.md shows, and the names that are not used."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from fixtures.import_graph import ROOT, Import, at_import, imports_of, reached, source_files, top
from fixtures.import_layers import LAYERS

RANKS = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
# A kernel reads the stream's arrays from the round and the keys and values from the cache's tensors.
ALLOWED = {("ops", "ramet.cache.kv"), ("ops", "ramet.cache.state")}

WITHOUT_TORCH = (
    *("ramet.tree", "ramet.merge", "ramet.units", "ramet.request", "ramet.decision", "ramet.generation"),
    *("ramet.errors", "ramet.version", "ramet.cache.pages"),
    *("ramet.cli", "ramet.server", "ramet.decide", "ramet.denoise"),
)
KNOWS_NO_TENSORS = (*WITHOUT_TORCH, "ramet.engine.scheduler")

OURS = [name for name in source_files() if top(name) == "ramet"]


def part(module: str) -> str:
    """engine of ramet.engine.scheduler, tree of ramet.tree; the package itself is no part."""
    return module.split(".")[1] if "." in module else ""


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports_from(*packages: str) -> list[Import]:
    return [i for m in OURS for i in imports_of(m) if any(inside(i.target, package) for package in packages)]


@pytest.mark.parametrize("module", OURS)
def test_every_part_has_a_layer(module: str) -> None:
    assert part(module) in {*RANKS, ""}, f"give {module} its place in LAYERS, and run `make docs`"


@pytest.mark.parametrize("module", [m for m in OURS if part(m)])
def test_imports_go_downwards(module: str) -> None:
    upward = [
        str(i)
        for i in imports_of(module)
        if part(i.target)
        and top(i.target) == "ramet"
        and part(i.target) != part(module)
        and RANKS[part(i.target)] <= RANKS[part(module)]
        and (part(module), i.target) not in ALLOWED
    ]
    assert not upward


def test_no_cycles() -> None:
    def targets(module: str) -> set[str]:
        return {i.target for i in at_import(module) if i.target in OURS and i.target != module}

    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module in done:
            return
        for target in targets(module):
            visit(target, (*path, module))
        done.add(module)

    for module in OURS:
        visit(module, ())


def test_triton_stays_in_its_files() -> None:
    outside = [i for i in imports_from("triton") if not (part(i.module) == "ops" and i.module.endswith(".triton"))]
    assert not outside, [*map(str, outside)]


def test_transformers_stays_in_its_files() -> None:
    """For configurations, tokenizers and templates. The bench's peer is transformers itself."""

    def allowed(i: Import) -> bool:
        return part(i.module) in {"text", "config", "bench"} or i.for_types

    outside = [i for i in imports_from("transformers") if not allowed(i)]
    assert not outside, [*map(str, outside)]


@pytest.mark.parametrize("package", KNOWS_NO_TENSORS)
def test_no_torch_in_the_source(package: str) -> None:
    """Not even lazily; the doctor alone looks at what torch has."""
    found = [
        str(i)
        for i in imports_from("torch")
        if inside(i.module, package) and not (i.module == "ramet.cli.doctor" and i.lazy)
    ]
    assert not found


@pytest.mark.parametrize("module", [m for m in OURS if any(inside(m, package) for package in WITHOUT_TORCH)])
def test_no_torch_behind_it(module: str) -> None:
    """Neither does anything that it imports."""
    assert "torch" not in reached(module)


def test_they_import_without_torch() -> None:
    """The same, by importing them where torch cannot be imported."""
    modules = [m for m in OURS if any(inside(m, package) for package in WITHOUT_TORCH)]
    code = f"import sys, importlib; sys.modules['torch'] = None\nfor m in {modules!r}: importlib.import_module(m)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", source_files())
def test_names_say_what_a_thing_is(module: str) -> None:
    vague = ("manager", "helper", "helpers", "util", "utils")
    assert not module.rpartition(".")[2].lower().endswith(vague)
    tree = ast.parse(source_files()[module].read_text(encoding="utf-8"))
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not [name for name in classes if name.lower().endswith(vague)]


def test_the_graph_sees_all_kinds_of_imports() -> None:
    """Guards the tests above: known imports of each kind are found."""
    kinds = {(i.target, i.lazy, i.for_types) for i in imports_of("ramet.cli")}
    assert ("ramet.errors", False, False) in kinds
    assert ("ramet.engine", True, False) in kinds
    assert ("ramet.engine", False, True) in kinds
