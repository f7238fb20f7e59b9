"""Gemma 3: sliding and full layers in turn, each kind with its own rotary embedding; transformers' Gemma3ForCausalLM,
and the text model of Gemma3ForConditionalGeneration."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ramet.families.family import (
    Family,
    Plan,
    Weight,
    add_one,
    attention_plan,
    layer_kinds,
    layers_plan,
    mlp_plan,
    outer_plan,
    require,
    require_whole_heads,
    window_of,
)
from ramet.layers.shape import AttentionShape, LayerShape, MLPShape, Shape

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"


def gemma3_shape(config: Any) -> Shape:
    """Reads transformers' Gemma3TextConfig."""
    require_whole_heads(config)
    require(config, "hidden_activation", "gelu_pytorch_tanh")
    require(config, "use_bidirectional_attention", False, None)
    require(config, "attn_logit_softcapping", None)
    require(config, "final_logit_softcapping", None)
    kinds = layer_kinds(config, _WINDOWED, _WHOLE)
    rotaries = tuple(sorted(set(kinds)))
    mlp = MLPShape(config.intermediate_size, "gelu_tanh")
    layers = [LayerShape(_attention(config, kind, rotaries), mlp, post_norms=True) for kind in kinds]
    return Shape(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, layers=tuple(layers), eps=config.rms_norm_eps,
        max_positions=config.max_position_embeddings, rotaries=rotaries, embedding_scale=config.hidden_size**0.5,
    )  # fmt: skip


def gemma3_plan(shape: Shape, names: Collection[str]) -> Plan:
    """Parameters of the text model, which in a multimodal checkpoint stands inside another."""
    return outer_plan(shape, names, add_one) | layers_plan(shape, names, partial(_layer, shape))


def _attention(config: Any, kind: str, rotaries: tuple[str, ...]) -> AttentionShape:
    return AttentionShape(
        n_heads=config.num_attention_heads, n_kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
        scale=config.query_pre_attn_scalar**-0.5, window=window_of(config, kind, _WINDOWED),
        rotary=rotaries.index(kind), bias=bool(config.attention_bias), qk_norm=True,
    )  # fmt: skip


def _layer(shape: Shape, layer: LayerShape, at: str) -> Plan:
    hidden, mixer = shape.hidden_size, layer.mixer
    assert isinstance(mixer, AttentionShape)
    norms = {
        "input_norm": ("input_layernorm", hidden),
        "mixer_post_norm": ("post_attention_layernorm", hidden),
        "mlp_norm": ("pre_feedforward_layernorm", hidden),
        "mlp_post_norm": ("post_feedforward_layernorm", hidden),
        "q_norm": ("self_attn.q_norm", mixer.head_dim),
        "k_norm": ("self_attn.k_norm", mixer.head_dim),
    }
    return {
        **{name: Weight((f"{at}.{theirs}.weight",), (size,), add_one) for name, (theirs, size) in norms.items()},
        **attention_plan(hidden, mixer, f"{at}.self_attn"),
        **mlp_plan(shape, layer, at),
    }


FAMILY = Family(
    shape=gemma3_shape,
    plan=gemma3_plan,
    unused=("model.vision_tower.", "model.multi_modal_projector."),
)
