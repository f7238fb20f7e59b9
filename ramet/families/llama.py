"""Llama and what shares its layers (SmolLM2): Touvron et al. 2023; transformers' LlamaForCausalLM."""

from __future__ import annotations

from functools import partial

from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import Family

FAMILY = Family(shape=partial(dense_shape, qk_norm=False), plan=dense_plan)
