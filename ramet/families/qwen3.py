"""Qwen3, dense: Llama's layers with a norm on each query and key head; transformers' Qwen3ForCausalLM."""

from __future__ import annotations

from functools import partial

from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import THOUGHTLESS, Family

FAMILY = Family(shape=partial(dense_shape, qk_norm=True, windows=True), plan=dense_plan, asked=THOUGHTLESS)
