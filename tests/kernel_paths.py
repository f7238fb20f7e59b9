"""Fixtures for tests of an op's cpu.py: through its compiled kernel, and through plain torch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ramet.ops import native

Fixture = Callable[..., Any]


def kernel_paths(cpu: ModuleType) -> tuple[Fixture, Fixture]:
    """`path`, which runs a test through both and is the name of the one, and `compiled`, through the first alone."""

    @pytest.fixture(params=["compiled", "plain"])
    def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        found = _compiled_library() if request.param == "compiled" else None
        monkeypatch.setattr(cpu, "library", lambda: found)
        return str(request.param)

    @pytest.fixture
    def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
        found = _compiled_library()
        monkeypatch.setattr(cpu, "library", lambda: found)

    return path, compiled


def _compiled_library() -> native.Library:
    found = native.library()
    if found is None:
        pytest.skip(f"no compiled kernels here: {native.status()[1]}")
    return found
