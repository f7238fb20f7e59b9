"""Qwen3, dense: Llama's layers with a norm on each query and key head; transformers' Qwen3ForCausalLM."""

from __future__ import annotations

from functools import partial

from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import THOUGHTLESS, Family
from ramet.families.gguf import HEAD_NORMS, LAYER_TENSORS, GgufArchitecture

GGUF = GgufArchitecture("qwen3", "qwen3", LAYER_TENSORS | HEAD_NORMS)
FAMILY = Family(
    ("qwen3",), partial(dense_shape, qk_norm=True, windows=True), dense_plan, gguf=GGUF, template_variables=THOUGHTLESS
)
