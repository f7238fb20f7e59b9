"""Llama-like families: attention over all that came before and a gated MLP, in every layer alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ramet.families.family import (
    Plan,
    Weight,
    attention_plan,
    layer_kinds,
    layers_plan,
    mlp_plan,
    outer_plan,
    require,
    require_whole_heads,
    window_of,
)
from ramet.layers.shape import AttentionShape, ExpertsShape, LayerShape, MLPShape, Shape

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"


def dense_shape(config: Any, *, qk_norm: bool, windows: bool = False, mlp: ExpertsShape | None = None) -> Shape:
    """The keys that Llama-like configurations share (transformers' LlamaConfig and its kin). windows: whether layers
    may have one. mlp: what layers have instead of a gated MLP."""
    require(config, "hidden_act", "silu")
    require_whole_heads(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dense = mlp or MLPShape(config.intermediate_size, bias=bool(getattr(config, "mlp_bias", False)))
    layers = [
        LayerShape(
            AttentionShape(
                n_heads=config.num_attention_heads, n_kv_heads=config.num_key_value_heads, head_dim=head_dim,
                scale=head_dim**-0.5, window=window_of(config, kind, _WINDOWED),
                bias=bool(config.attention_bias), qk_norm=qk_norm,
            ),
            dense,
        )
        for kind in layer_kinds(config, *((_WINDOWED,) if windows else ()), _WHOLE)
    ]  # fmt: skip
    return Shape(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, layers=tuple(layers), eps=config.rms_norm_eps,
        max_positions=config.max_position_embeddings,
    )  # fmt: skip


def dense_plan(shape: Shape, names: Collection[str], mlp: Callable[[LayerShape, str], Plan] | None = None) -> Plan:
    """Parameters of Llama-like checkpoints. mlp: names those of a layer's MLP, where it is none of the usual, given the
    layer and what its names begin with."""
    own = partial(_layer, shape, mlp or partial(mlp_plan, shape))
    return outer_plan(shape, names, None) | layers_plan(shape, names, own)


def _layer(shape: Shape, mlp: Callable[[LayerShape, str], Plan], layer: LayerShape, at: str) -> Plan:
    hidden, mixer = shape.hidden_size, layer.mixer
    assert isinstance(mixer, AttentionShape)
    plan = {
        "input_norm": Weight((f"{at}.input_layernorm.weight",), (hidden,)),
        "mlp_norm": Weight((f"{at}.post_attention_layernorm.weight",), (hidden,)),
        **attention_plan(hidden, mixer, f"{at}.self_attn"),
        **mlp(layer, at),
    }
    for name in ("q_norm", "k_norm") if mixer.qk_norm else ():
        plan[name] = Weight((f"{at}.self_attn.{name}.weight",), (mixer.head_dim,))
    return plan
