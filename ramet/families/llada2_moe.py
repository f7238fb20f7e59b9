"""LLaDA2.0: Ling 2.0's layers for blocks of masks. Experts are chosen by groups, one is shared, and the first layers
have none; half of each head is turned. inclusionAI's LLaDA2MoeModelLM."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch

from ramet.errors import CheckpointError
from ramet.families.experts import experts_chosen, experts_plan
from ramet.families.family import (
    BlockDefaults,
    Family,
    Plan,
    Weight,
    gated_products,
    layer_kinds,
    layers_plan,
    mlp_plan,
    outer_plan,
    require,
)
from ramet.layers.shape import AttentionShape, ExpertsShape, GroupsShape, LayerShape, MLPShape, Shape

_ALWAYS = {
    "hidden_act": "silu", "use_sliding_window": False, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False,
    "norm_head": False, "score_function": "sigmoid", "norm_topk_prob": True, "moe_router_enable_expert_bias": True,
}  # fmt: skip


def _shape(config: Any) -> Shape:
    for key, value in _ALWAYS.items():
        require(config, key, value)
    if config.expert_capacity is not None:
        raise CheckpointError(
            f"config.json: expert_capacity is {config.expert_capacity!r}: which experts a row may take would depend on "
            "its whole block (LLaDA2.2), and blocks are computed in parts here"
        )
    layer_kinds(config, "full_attention")
    dense, experts = MLPShape(config.intermediate_size), _experts(config)
    mixer = AttentionShape(
        n_heads=config.num_attention_heads, n_kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
        scale=config.head_dim**-0.5, qk_norm=True,
    )  # fmt: skip
    mlps = (dense if i < config.first_k_dense_replace else experts for i in range(config.num_hidden_layers))
    return Shape(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size,
        layers=tuple(LayerShape(mixer, mlp) for mlp in mlps), eps=config.rms_norm_eps,
        max_positions=config.max_position_embeddings,
    )  # fmt: skip


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


def _plan(shape: Shape, names: Collection[str]) -> Plan:
    layers = layers_plan(shape, names, partial(_layer, shape, names))
    return outer_plan(shape, names, None, embedding="word_embeddings") | layers


def _layer(shape: Shape, names: Collection[str], layer: LayerShape, at: str) -> Plan:
    hidden, mixer = shape.hidden_size, layer.mixer
    assert isinstance(mixer, AttentionShape)
    return {
        "input_norm": Weight((f"{at}.input_layernorm.weight",), (hidden,)),
        "mlp_norm": Weight((f"{at}.post_attention_layernorm.weight",), (hidden,)),
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
        "q_norm": Weight((f"{at}.query_layernorm.weight",), (mixer.head_dim,)),
        "k_norm": Weight((f"{at}.key_layernorm.weight",), (mixer.head_dim,)),
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
    shape=_shape,
    plan=_plan,
    blocks=BlockDefaults(size=32, mask=156895, stops=("<|endoftext|>", "<|role_end|>")),
)
