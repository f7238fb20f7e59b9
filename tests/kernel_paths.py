"""What tests of an op's cpu.py share: its compiled kernel, plain torch, and what the processor lacks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from ramet.errors import CheckpointError
from ramet.ops import native
from ramet.ops.experts import cpu as experts

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


def experts_refused(make: Callable[[], object], model_type: str, dtype: str) -> bool:
    """Whether the mode of the same bits cannot be had here: experts in bfloat16 need a processor's units for it. Checks
    that `make`, which loads such a model, is then refused."""
    found = native.library()
    if dtype != "bfloat16" or not model_type.endswith("_moe") or (found and experts.packs(found, torch.bfloat16)):
        return False
    with pytest.raises(CheckpointError, match="experts in bfloat16 on this processor"):
        make()
    return True
