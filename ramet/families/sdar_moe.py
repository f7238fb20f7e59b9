"""SDAR-MoE: SDAR's attention, and experts without a shared one in every layer; JetLM's SDARMoeForCausalLM."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ramet.families.configuration import require
from ramet.families.dense import dense_plan, dense_shape
from ramet.families.experts import ExpertsSchema, experts_chosen, experts_plan
from ramet.families.family import Family
from ramet.families.plans import products
from ramet.families.sdar import BLOCKS
from ramet.families.weight import Plan
from ramet.layers.experts import ExpertsShape
from ramet.layers.layer import LayerShape
from ramet.layers.shape import ModelShape


class SDARMoESchema(ExpertsSchema):
    attention_bias: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


def _shape(config: Any) -> ModelShape:
    require(config, "use_sliding_window", False)
    require(config, "norm_topk_prob", True)
    require(config, "mlp_only_layers", None, [])
    require(config, "decoder_sparse_step", 1)
    return dense_shape(config, qk_norm=True, mlp=ExpertsShape(*experts_chosen(config), config.moe_intermediate_size))


def _plan(shape: ModelShape, names: Collection[str]) -> Plan:
    return dense_plan(shape, names, partial(_mlp_plan, shape.hidden_size, names))


def _mlp_plan(hidden: int, names: Collection[str], layer: LayerShape, at: str) -> Plan:
    mlp, at = layer.mlp, f"{at}.mlp"
    assert isinstance(mlp, ExpertsShape)
    router = products(at, {"router": (("gate",), mlp.n_experts, hidden)})
    return router | experts_plan(f"{at}.experts", mlp.n_experts, mlp.size, hidden, names)


FAMILY = Family(("sdar_moe",), _shape, _plan, schema=SDARMoESchema, blocks=BLOCKS)
