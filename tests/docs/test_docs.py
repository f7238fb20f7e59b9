"""The generated pages are those of the code, and they leave nothing out."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
from fixtures.import_graph import PACKAGE, ROOT

pytest.importorskip("torch")

import ramet
from ramet import errors
from ramet.engine.settings import EngineSettings
from ramet.request import DecisionRequest


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("generate")


@pytest.mark.parametrize("page", ["architecture.md", "cli.md", "settings.md", "serve-lines.md", "python.md"])
def test_pages_are_up_to_date(generate: ModuleType, page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == generate.PAGES[page](), "run `make docs`"


def test_every_exported_name_is_told(generate: ModuleType) -> None:
    told = re.findall(r"^### `(\w+)`$", generate.PAGES["python.md"](), re.MULTILINE)
    assert sorted(told) == sorted(set(ramet.__all__) - {"__version__"})


def test_every_exported_name_is_there() -> None:
    assert set(ramet._HOMES) | {"__version__"} == set(ramet.__all__)
    for name in ramet.__all__:
        assert getattr(ramet, name) is not None


def test_every_error_is_exported() -> None:
    raised = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    assert raised <= set(ramet.__all__)


def test_what_public_methods_take_and_return_is_exported(generate: ModuleType) -> None:
    """Names in signatures and fields, as far as they are classes of ours; short names for types are told by name."""
    page = generate.PAGES["python.md"]()
    signatures = re.findall(r"^```text\n((?:await )?[A-Z][\w.]*\(.+?)^```", page, re.MULTILINE | re.DOTALL)
    types = re.findall(r"^\| `\w+` \| `(.+?)` \|", page, re.MULTILINE)
    named = set(re.findall(r"\b[A-Z]\w+", " ".join([*signatures, *types])))
    aliases = set(re.findall(r"`(\w+)`", page.partition("## Types by name")[2]))
    known = {"Any", "AsyncGenerator", "Callable", "Future", "Iterable", "Literal", "Mapping"}
    known |= {"False", "None", "Path", "Sequence"}
    assert named - set(ramet.__all__) - aliases - known == set()


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
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"\bRAMET_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert used
    assert used <= set(generate.VARIABLES)


def test_the_examples_are_requests() -> None:
    examples = sorted((ROOT / "examples").glob("*.json"))
    assert examples
    for path in examples:
        DecisionRequest.parse(json.loads(path.read_text(encoding="utf-8")))
