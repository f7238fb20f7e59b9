"""The generated pages are those of the code, and they leave nothing out."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from types import ModuleType

import pytest
from import_graph import PACKAGE, ROOT

pytest.importorskip("torch")

from ramet.engine.settings import EngineSettings
from ramet.request import DecisionRequest


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "settings.md", "serve-lines.md"])
def test_pages_are_up_to_date(generate: ModuleType, page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == generate.PAGES[page](), "run `make docs`"


def test_told_defaults_are_the_real_ones(generate: ModuleType) -> None:
    told = {name: default for name, default, *_ in generate._engine_rows()}
    for field in dataclasses.fields(EngineSettings):
        if isinstance(field.default, int | float | str):
            assert told[field.name] == str(field.default), field.name
    on_cpu = EngineSettings(device="cpu").resolved()
    assert told["max_round_tokens"].startswith(f"{on_cpu.max_round_tokens} on a CPU")


def test_every_extra_of_a_request_is_a_setting(generate: ModuleType) -> None:
    extras = {name for name in DecisionRequest.model_fields if name.startswith("x_")}
    assert set(generate.REQUEST_OPTIONS) == {"joint", *extras}


def test_every_variable_is_told(generate: ModuleType) -> None:
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").glob("*.py")]
    used = {name for path in sources for name in re.findall(r"\bRAMET_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert used
    assert used <= set(generate.VARIABLES)


def test_the_examples_are_requests() -> None:
    examples = sorted((ROOT / "examples").glob("*.json"))
    assert examples
    for path in examples:
        DecisionRequest.parse(json.loads(path.read_text(encoding="utf-8")))
