"""Llama and what shares its layers (SmolLM2): Touvron et al. 2023; transformers' LlamaForCausalLM."""

from __future__ import annotations

from functools import partial

from ramet.families.family import Family, dense_plan, dense_shape

FAMILY = Family(shape=partial(dense_shape, qk_norm=False), plan=dense_plan)
