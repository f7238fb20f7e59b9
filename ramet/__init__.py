"""Ramet: decisions from language models. A request is a tree of token segments, answered in one pass.

    from ramet import Engine

    with Engine.load("smollm2") as engine:
        decision = engine.decide(state="...", questions={"paid": {"type": "noul", "instructions": "Is it paid?"}})

The names below are loaded when first used, so that importing `ramet` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramet.version import __version__

if TYPE_CHECKING:
    from ramet.engine.engine import Engine
    from ramet.engine.settings import EngineSettings
    from ramet.errors import RametError
    from ramet.request import Choice, Decision, DecisionRequest, Noul, Score
    from ramet.tree import WHOLE, Read, Reads, Segment, Tree

_HOMES = {
    "Engine": "ramet.engine.engine",
    "EngineSettings": "ramet.engine.settings",
    "RametError": "ramet.errors",
    **dict.fromkeys(("Choice", "Decision", "DecisionRequest", "Noul", "Score"), "ramet.request"),
    **dict.fromkeys(("WHOLE", "Read", "Reads", "Segment", "Tree"), "ramet.tree"),
}

__all__ = [
    "WHOLE", "Choice", "Decision", "DecisionRequest", "Engine", "EngineSettings", "Noul", "RametError", "Read",
    "Reads", "Score", "Segment", "Tree", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
