"""Qwen3.5-MoE: Qwen3.5's layers with experts for an MLP; transformers' Qwen3_5MoeForCausalLM, and the text model of
Qwen3_5MoeForConditionalGeneration."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ramet.families.configuration import require
from ramet.families.experts import experts_chosen, experts_plan
from ramet.families.family import THOUGHTLESS, Family
from ramet.families.plans import products
from ramet.families.qwen3_5 import UNUSED, hybrid_plan, hybrid_shape
from ramet.families.weight import Plan
from ramet.layers.experts import ExpertsShape
from ramet.layers.layer import LayerShape
from ramet.layers.shape import ModelShape


def _shape(config: Any) -> ModelShape:
    require(config, "norm_topk_prob", True)
    require(config, "mlp_only_layers", [], None)
    n_experts, n_chosen = experts_chosen(config)
    size, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    return hybrid_shape(config, ExpertsShape(n_experts, n_chosen, size, shared, shared_gated=True))


def _plan(shape: ModelShape, names: Collection[str]) -> Plan:
    return hybrid_plan(shape, names, partial(_mlp_plan, shape.hidden_size, names))


def _mlp_plan(hidden: int, names: Collection[str], layer: LayerShape, at: str) -> Plan:
    mlp, at = layer.mlp, f"{at}.mlp"
    assert isinstance(mlp, ExpertsShape)
    sizes = {
        "router": (("gate",), mlp.n_experts, hidden),
        "gate_up_proj": (("shared_expert.gate_proj", "shared_expert.up_proj"), 2 * mlp.shared_size, hidden),
        "down_proj": (("shared_expert.down_proj",), hidden, mlp.shared_size),
        "shared_gate": (("shared_expert_gate",), 1, hidden),
    }
    return {**products(at, sizes), **experts_plan(f"{at}.experts", mlp.n_experts, mlp.size, hidden, names)}


FAMILY = Family(("qwen3_5_moe", "qwen3_5_moe_text"), _shape, _plan, unused=UNUSED, template_variables=THOUGHTLESS)
