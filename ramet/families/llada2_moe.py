"""LLaDA2.0: Ling 2.0's layers for blocks of masks. Experts are chosen by groups, one is shared, and the first layers
have none; half of each head is turned. inclusionAI's LLaDA2MoeModelLM."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from ramet.errors import CheckpointError
from ramet.families.configuration import attention_shape, layer_kinds, model_shape, require
from ramet.families.experts import ExpertsSchema, experts_chosen, experts_plan
from ramet.families.family import BlockDefaults, Family
from ramet.families.plans import LAYER_NORMS, gated_products, layers_plan, mlp_plan, norms, outer_plan
from ramet.families.weight import Plan, Weight
from ramet.layers.attention import AttentionShape
from ramet.layers.experts import ExpertsShape, GroupsShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

_EMBEDDING = "word_embeddings"
_ALWAYS = {
    "hidden_act": "silu", "use_sliding_window": False, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False,
    "norm_head": False, "score_function": "sigmoid", "norm_topk_prob": True, "moe_router_enable_expert_bias": True,
}  # fmt: skip


class LLaDA2Schema(ExpertsSchema):
    """The rotary embedding turns a part of each head; one of two keys says which."""

    intermediate_size: PositiveInt
    first_k_dense_replace: NonNegativeInt
    num_shared_experts: NonNegativeInt
    n_group: PositiveInt
    topk_group: PositiveInt
    routed_scaling_factor: PositiveFloat
    score_function: str
    moe_router_enable_expert_bias: bool = True
    expert_capacity: Any = None
    use_qk_norm: bool = True
    use_qkv_bias: bool = False
    use_bias: bool = False
    norm_head: bool = False
    rotary_dim: PositiveInt | None = None

    def values(self) -> dict[str, Any]:
        values = super().values()
        rope, part = values["rope_parameters"], self.partial_rotary_factor
        parts = [rope.get("partial_rotary_factor"), part, self.rotary_dim and self.rotary_dim / self.head_dim]
        found = {each for each in parts if each is not None}
        if len(found) != 1 or not 0 < min(found) <= 1:
            raise ValueError("partial_rotary_factor or rotary_dim must say which part of each head is turned")
        rope["partial_rotary_factor"] = found.pop()
        return values


def _shape(config: Any) -> ModelShape:
    for key, value in _ALWAYS.items():
        require(config, key, value)
    if config.expert_capacity is not None:
        raise CheckpointError(
            f"config.json: expert_capacity is {config.expert_capacity!r}: which experts a row may take would depend on "
            "its whole block (LLaDA2.2), and blocks are computed in parts here"
        )
    layer_kinds(config, "full_attention")
    dense, experts = MLPShape(config.intermediate_size), _experts(config)
    mixer = attention_shape(config, qk_norm=True)
    mlps = (dense if i < config.first_k_dense_replace else experts for i in range(config.num_hidden_layers))
    return model_shape(config, (LayerShape(mixer, mlp) for mlp in mlps))


def _experts(config: Any) -> ExpertsShape:
    n_experts, n_chosen = experts_chosen(config)
    n_groups, n_kept, size = config.n_group, config.topk_group, config.moe_intermediate_size
    if n_experts % n_groups or n_experts < 2 * n_groups:
        raise CheckpointError(f"config.json: num_experts {n_experts} makes no n_group {n_groups} of two or more")
    if not n_chosen * n_groups <= n_kept * n_experts <= n_groups * n_experts:
        raise CheckpointError(
            f"config.json: num_experts_per_tok {n_chosen} of topk_group {n_kept} of n_group {n_groups} cannot be chosen"
        )
    groups = GroupsShape(n_groups, n_kept, config.routed_scaling_factor)
    return ExpertsShape(n_experts, n_chosen, size, config.num_shared_experts * size, groups=groups)


def _plan(shape: ModelShape, names: Collection[str]) -> Plan:
    layers = layers_plan(shape, names, partial(_layer, shape, names))
    return outer_plan(shape, names, None, embedding=_EMBEDDING) | layers


def _layer(shape: ModelShape, names: Collection[str], layer: LayerShape, at: str) -> Plan:
    hidden, mixer = shape.hidden_size, layer.mixer
    assert isinstance(mixer, AttentionShape)
    return {
        **norms(at, LAYER_NORMS, hidden),
        **_attention_plan(hidden, mixer, f"{at}.attention"),
        **(
            _experts_plan(hidden, layer.mlp, f"{at}.mlp", names)
            if isinstance(layer.mlp, ExpertsShape)
            else mlp_plan(shape, layer, at)
        ),
    }


def _attention_plan(hidden: int, mixer: AttentionShape, at: str) -> Plan:
    """Queries, keys and values are one product: all heads of the first, then of the second, then of the third."""
    wide, narrow = mixer.n_heads * mixer.head_dim, mixer.n_kv_heads * mixer.head_dim
    fused, n_rows = (f"{at}.query_key_value.weight",), wide + 2 * narrow
    return {
        "q_proj": Weight(fused, (n_rows, hidden), partial(_rows, 0, wide)),
        "kv_proj": Weight(fused, (n_rows, hidden), partial(_rows, wide, n_rows)),
        "o_proj": Weight((f"{at}.dense.weight",), (hidden, wide)),
        **norms(at, {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}, mixer.head_dim),
    }


def _experts_plan(hidden: int, mlp: ExpertsShape, at: str, names: Collection[str]) -> Plan:
    plan = {
        "router": Weight((f"{at}.gate.weight",), (mlp.n_experts, hidden), wide=True),
        "expert_bias": Weight((f"{at}.gate.expert_bias",), (mlp.n_experts,), wide=True),
        **experts_plan(f"{at}.experts", mlp.n_experts, mlp.size, hidden, names),
    }
    if mlp.shared_size:
        plan |= gated_products(f"{at}.shared_experts", MLPShape(mlp.shared_size), hidden)
    return plan


def _rows(first: int, last: int, weight: torch.Tensor) -> torch.Tensor:
    """A copy, so that the rest is let go."""
    return weight[first:last].clone()


FAMILY = Family(
    ("llada2_moe",),
    _shape,
    _plan,
    schema=LLaDA2Schema,
    aliases=("llada2_moe_veomni",),
    embedding=_EMBEDDING,
    blocks=BlockDefaults(
        size=32,
        mask=156895,
        stops=("<|endoftext|>", "<|role_end|>"),
        editing={"LLaDA2.1 and 2.2 do": re.compile(r"llada-?2[.-][1-9]", re.IGNORECASE)},
    ),
)
