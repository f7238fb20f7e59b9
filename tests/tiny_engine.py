"""The real engine on a tiny random checkpoint, in float32, so that its answers can be computed again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from oracle import evaluate
from transformers import PreTrainedModel

from ramet.engine import Engine
from ramet.request import Answer, DecisionRequest

MAKERS = {"llama": tiny.llama, "qwen3": tiny.qwen3}
MAX_POSITIONS = 32768


def checkpoint(model_type: str) -> Path:
    """The directory that `tiny_engine` loads."""
    return MAKERS[model_type](max_position_embeddings=MAX_POSITIONS)


def tiny_engine(model_type: str = "qwen3", source: Path | None = None, **settings: Any) -> Engine:
    """Load one; the caller closes it. `settings` are Engine.load's."""
    chosen = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 24, "name": f"tiny-{model_type}", **settings}
    return Engine.load(source or checkpoint(model_type), **chosen)


def expected(engine: Engine, model: PreTrainedModel, request: DecisionRequest) -> dict[str, Answer]:
    """The answers when transformers runs the request's plan, path by path."""
    plan = engine.decider.plan(request)
    return plan.answers(evaluate(model, plan.tree))


def probabilities(answers: Mapping[str, Any]) -> dict[str, list[float]]:
    """Of each answer, whether objects of ours or JSON: its probabilities, all of them, in order."""
    plain = {name: a if isinstance(a, dict) else a.model_dump() for name, a in answers.items()}
    return {name: [a["noul"]] if a["type"] == "noul" else [*a["probabilities"].values()] for name, a in plain.items()}


def assert_close(found: Mapping[str, Any], wanted: Mapping[str, Any], atol: float = 1e-5) -> None:
    """The same questions in the same order, and probabilities that differ by no more than `atol`."""
    ours, theirs = probabilities(found), probabilities(wanted)
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)
