"""What a family says of its checkpoints: how to read the configuration, and the names of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramet.errors import CheckpointError
from ramet.layers.decoder import Shape


@dataclass(frozen=True, slots=True)
class Weight:
    """The checkpoint's parameters that make one of ours, laid one behind the other along the first dimension, and
    the shape that they must come to."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]


Plan = dict[str, Weight]  # by our name


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
    """Parameters of Llama-like checkpoints. One that does not tie its head has "head" besides (`head_weight`)."""
    vocabulary, hidden = shape.vocab_size, shape.hidden_size
    plan = {
        "embedding": Weight(("model.embed_tokens.weight",), (vocabulary, hidden)),
        "final_norm": Weight(("model.norm.weight",), (hidden,)),
    }
    for i in range(shape.n_layers):
        plan.update({f"{i}.{name}": weight for name, weight in _layer(shape, f"model.layers.{i}").items()})
    return plan


def head_weight(shape: Shape) -> Weight:
    """The head of a checkpoint that has one of its own."""
    return Weight(("lm_head.weight",), (shape.vocab_size, shape.hidden_size))


def _layer(shape: Shape, at: str) -> Plan:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    heads, kv_heads = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    attention = {
        "q_proj": (("q_proj",), heads, hidden),
        "kv_proj": (("k_proj", "v_proj"), 2 * kv_heads, hidden),
        "o_proj": (("o_proj",), hidden, heads),
    }
    mlp = {"gate_up_proj": (("gate_proj", "up_proj"), 2 * inner, hidden), "down_proj": (("down_proj",), hidden, inner)}
    plan = {
        "input_norm": Weight((f"{at}.input_layernorm.weight",), (hidden,)),
        "mlp_norm": Weight((f"{at}.post_attention_layernorm.weight",), (hidden,)),
    }
    for module, products, bias in (("self_attn", attention, shape.attention_bias), ("mlp", mlp, shape.mlp_bias)):
        for name, (parts, n_out, n_in) in products.items():
            plan[name] = Weight(tuple(f"{at}.{module}.{part}.weight" for part in parts), (n_out, n_in))
            if bias:
                plan[f"{name}_bias"] = Weight(tuple(f"{at}.{module}.{part}.bias" for part in parts), (n_out,))
    for name in ("q_norm", "k_norm") if shape.qk_norm else ():
        plan[name] = Weight((f"{at}.self_attn.{name}.weight",), (shape.head_dim,))
    return plan
