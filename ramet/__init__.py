"""Ramet: decisions from language models. A request is a tree of token segments, answered in one pass.

    from ramet import Engine

    with Engine.load("smollm2") as engine:
        decision = engine.decide(state="...", questions={"paid": {"type": "noul", "instructions": "Is it paid?"}})

The names below are the Python interface; docs/python.md has a page of them. They are loaded when first used, so that
importing `ramet` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramet.version import __version__

if TYPE_CHECKING:
    from ramet.decision import (
        ChoiceAnswer,
        Debiased,
        Decision,
        Joint,
        JointCanvas,
        NoulAnswer,
        ReachedThreshold,
        Scaled,
        ScoreAnswer,
        Timing,
        Usage,
    )
    from ramet.engine.engine import Engine
    from ramet.engine.multi_step_read import MultiStepRead
    from ramet.engine.settings import EngineSettings
    from ramet.engine.writer import Writer
    from ramet.errors import (
        Cancelled,
        CheckpointError,
        EngineFault,
        InvalidRequest,
        NotSupported,
        Overloaded,
        Problem,
        RametError,
        RequestError,
        RequestTooLong,
        UnknownModel,
    )
    from ramet.generation import Generation, GenerationRequest, Piece, Position
    from ramet.question import Choice, Noul, Outcomes, Score
    from ramet.request import DecisionRequest
    from ramet.text.conversation import Conversation
    from ramet.tree import WHOLE, Limits, Read, Reads, Segment, Step, Stepped, Tree

_NAMES = {
    "ramet.decision": (
        "ChoiceAnswer", "Debiased", "Decision", "Joint", "JointCanvas", "NoulAnswer", "ReachedThreshold", "Scaled",
        "ScoreAnswer", "Timing", "Usage",
    ),
    "ramet.engine.multi_step_read": ("MultiStepRead",),
    "ramet.engine.engine": ("Engine",),
    "ramet.engine.settings": ("EngineSettings",),
    "ramet.engine.writer": ("Writer",),
    "ramet.errors": (
        "Cancelled", "CheckpointError", "EngineFault", "InvalidRequest", "NotSupported", "Overloaded", "Problem",
        "RametError", "RequestError", "RequestTooLong", "UnknownModel",
    ),
    "ramet.generation": ("Generation", "GenerationRequest", "Piece", "Position"),
    "ramet.question": ("Choice", "Noul", "Outcomes", "Score"),
    "ramet.request": ("DecisionRequest",),
    "ramet.text.conversation": ("Conversation",),
    "ramet.tree": ("WHOLE", "Limits", "Read", "Reads", "Segment", "Step", "Stepped", "Tree"),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "WHOLE",
    "Cancelled",
    "CheckpointError",
    "Choice",
    "ChoiceAnswer",
    "Conversation",
    "Debiased",
    "Decision",
    "DecisionRequest",
    "Engine",
    "EngineFault",
    "EngineSettings",
    "Generation",
    "GenerationRequest",
    "InvalidRequest",
    "Joint",
    "JointCanvas",
    "Limits",
    "MultiStepRead",
    "NotSupported",
    "Noul",
    "NoulAnswer",
    "Outcomes",
    "Overloaded",
    "Piece",
    "Position",
    "Problem",
    "RametError",
    "ReachedThreshold",
    "Read",
    "Reads",
    "RequestError",
    "RequestTooLong",
    "Scaled",
    "Score",
    "ScoreAnswer",
    "Segment",
    "Step",
    "Stepped",
    "Timing",
    "Tree",
    "UnknownModel",
    "Usage",
    "Writer",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
