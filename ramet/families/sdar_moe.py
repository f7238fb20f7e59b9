"""SDAR-MoE: SDAR's attention, and experts without a shared one in every layer; JetLM's SDARMoeForCausalLM."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ramet.families.dense import dense_plan, dense_shape
from ramet.families.experts import experts_chosen, experts_plan
from ramet.families.family import Family, Plan, products, require
from ramet.families.sdar import BLOCKS
from ramet.layers.shape import ExpertsShape, LayerShape, Shape


def _shape(config: Any) -> Shape:
    require(config, "use_sliding_window", False)
    require(config, "norm_topk_prob", True)
    require(config, "mlp_only_layers", None, [])
    require(config, "decoder_sparse_step", 1)
    return dense_shape(config, qk_norm=True, mlp=ExpertsShape(*experts_chosen(config), config.moe_intermediate_size))


def _plan(shape: Shape, names: Collection[str]) -> Plan:
    return dense_plan(shape, names, partial(_mlp_plan, shape.hidden_size, names))


def _mlp_plan(hidden: int, names: Collection[str], layer: LayerShape, at: str) -> Plan:
    mlp, at = layer.mlp, f"{at}.mlp"
    assert isinstance(mlp, ExpertsShape)
    router = products(at, {"router": (("gate",), mlp.n_experts, hidden)})
    return router | experts_plan(f"{at}.experts", mlp.n_experts, mlp.size, hidden, names)


FAMILY = Family(shape=_shape, plan=_plan, blocks=BLOCKS)
