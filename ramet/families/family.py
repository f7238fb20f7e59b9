"""What a family says of its checkpoints: how to read the configuration, and the names of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramet.errors import CheckpointError
from ramet.layers.decoder import Shape

Plan = dict[str, tuple[str, ...]]  # our name -> the checkpoint's names, joined along their first dimension


@dataclass(frozen=True, slots=True)
class Family:
    """`shape` reads transformers' configuration object; `plan` names a checkpoint's weights for that shape."""

    shape: Callable[[Any], Shape]
    plan: Callable[[Shape], Plan]


def require(config: Any, key: str, *allowed: object) -> None:
    """Refuse a configuration that asks for what the family's layers do not do."""
    value = getattr(config, key, allowed[0])
    if value not in allowed:
        names = " or ".join(repr(a) for a in allowed)
        raise CheckpointError(f"config.json: {key} is {value!r}; {config.model_type} is implemented for {names}")


def dense_shape(config: Any, *, qk_norm: bool) -> Shape:
    """The keys that Llama-like configurations share (transformers' LlamaConfig and its kin)."""
    require(config, "hidden_act", "silu")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None) or 0
    return Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        eps=config.rms_norm_eps,
        max_positions=config.max_position_embeddings,
        windows=tuple(window if kind == "sliding_attention" else 0 for kind in kinds),
        qk_norm=qk_norm,
        attention_bias=bool(config.attention_bias),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
    )


def dense_plan(shape: Shape) -> Plan:
    """Parameter names of Llama-like checkpoints; "head" is left out where the checkpoint ties it."""
    plan: Plan = {"embedding": ("model.embed_tokens.weight",), "final_norm": ("model.norm.weight",)}
    for i in range(shape.n_layers):
        layer = f"model.layers.{i}"
        plan[f"{i}.input_norm"] = (f"{layer}.input_layernorm.weight",)
        plan[f"{i}.mlp_norm"] = (f"{layer}.post_attention_layernorm.weight",)
        for ours, theirs in _PRODUCTS.items():
            plan[f"{i}.{ours}"] = tuple(f"{layer}.{name}.weight" for name in theirs)
            if shape.mlp_bias if theirs[0].startswith("mlp") else shape.attention_bias:
                plan[f"{i}.{ours}_bias"] = tuple(f"{layer}.{name}.bias" for name in theirs)
        if shape.qk_norm:
            plan[f"{i}.q_norm"] = (f"{layer}.self_attn.q_norm.weight",)
            plan[f"{i}.k_norm"] = (f"{layer}.self_attn.k_norm.weight",)
    return plan


_PRODUCTS = {
    "q_proj": ("self_attn.q_proj",),
    "kv_proj": ("self_attn.k_proj", "self_attn.v_proj"),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}
