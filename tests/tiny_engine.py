"""The real engine on a tiny random checkpoint, in float32, so that its answers can be computed again elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny
from oracle import evaluate
from transformers import PreTrainedModel

from ramet.engine import Engine
from ramet.request import Answer, DecisionRequest

MAKERS = {
    "gemma3": tiny.gemma3, "gemma4": tiny.gemma4, "gemma4_moe": tiny.gemma4_moe, "llama": tiny.llama,
    "qwen3": tiny.qwen3, "qwen3_5": tiny.qwen3_5, "qwen3_5_moe": tiny.qwen3_5_moe,
}  # fmt: skip
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
