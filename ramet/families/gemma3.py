"""Gemma 3: sliding and full layers in turn, each kind with its own rotary embedding; transformers' Gemma3ForCausalLM,
and the text model of Gemma3ForConditionalGeneration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from ramet.families.configuration import (
    attention_shape,
    biased_products,
    layer_kinds,
    model_shape,
    require,
    require_whole_heads,
    window_of,
)
from ramet.families.family import Family
from ramet.families.gguf import HEAD_NORMS, LAYER_TENSORS, GgufArchitecture, GgufKeys
from ramet.families.plans import (
    OUTPUT_NORMS,
    QK_NORMS,
    add_one,
    attention_plan,
    layers_plan,
    mlp_plan,
    norms,
    outer_plan,
)
from ramet.families.weight import Plan
from ramet.foreign import is_whole
from ramet.layers.attention import AttentionShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"


def gemma3_shape(config: Any) -> ModelShape:
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
    return model_shape(config, layers, rotaries=rotaries, embedding_scale=config.hidden_size**0.5)


def gemma3_plan(shape: ModelShape, names: Collection[str]) -> Plan:
    """Parameters of the text model, which in a multimodal checkpoint stands inside another."""
    return outer_plan(shape, names, add_one) | layers_plan(shape, names, partial(_layer, shape))


def _attention(config: Any, kind: str, rotaries: tuple[str, ...]) -> AttentionShape:
    return attention_shape(
        config,
        scale=config.query_pre_attn_scalar**-0.5,
        window=window_of(config, kind, _WINDOWED),
        rotary=rotaries.index(kind),
        biased=biased_products(config),
        qk_norm=True,
    )


def _layer(shape: ModelShape, layer: LayerShape, at: str) -> Plan:
    hidden, mixer = shape.hidden_size, layer.mixer
    assert isinstance(mixer, AttentionShape)
    return {
        **norms(at, OUTPUT_NORMS, hidden, add_one),
        **norms(f"{at}.self_attn", QK_NORMS, mixer.head_dim, add_one),
        **attention_plan(hidden, mixer, f"{at}.self_attn"),
        **mlp_plan(shape, layer, at),
    }


def _gguf_config(own: GgufKeys, raw: Mapping[str, Any]) -> dict[str, Any]:
    """What sets Gemma 3 apart. Converters write neither the pattern of its layers nor the base of the sliding ones'
    frequencies, nor the scale of scores, in which the one of 62 layers (27B) differs from all others."""
    n_layers = raw["num_hidden_layers"]
    per_head = raw["hidden_size"] // raw["num_attention_heads"]
    return {
        "sliding_window": own.size("attention.sliding_window", "sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in _windowed(own, n_layers)],
        "rope_parameters": {
            "full_attention": raw["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": float(own.real("rope.freq_base_swa", 1e4))},
        },
        "query_pre_attn_scalar": per_head if n_layers == 62 else raw["head_dim"],
        "final_logit_softcapping": own.fields.real(own.full("final_logit_softcapping"), zero=True),
        "attn_logit_softcapping": own.fields.real(own.full("attn_logit_softcapping"), zero=True),
    }


def _windowed(own: GgufKeys, n_layers: int) -> list[bool]:
    """Whether each layer is a sliding one: listed, or all but every so manieth."""
    key, of_six = own.full("attention.sliding_window_pattern"), 6
    listed = own.fields.get(key, of_six)
    if isinstance(listed, list):
        if len(listed) != n_layers or not all(isinstance(each, bool) for each in listed):
            raise own.fields.wrong(key, f"true or false for each of {n_layers} layers")
        return listed
    if not is_whole(listed) or listed < 1:
        raise own.fields.wrong(key, "a whole number from 1, or a list")
    return [(i + 1) % listed > 0 for i in range(n_layers)]


_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GGUF = GgufArchitecture(
    "gemma3",
    "gemma3_text",
    LAYER_TENSORS | HEAD_NORMS | _NORMS,
    keys=(
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
        "final_logit_softcapping",
        "attn_logit_softcapping",
    ),
    config=_gguf_config,
    whole_norms=True,
)
FAMILY = Family(
    ("gemma3", "gemma3_text"),
    gemma3_shape,
    gemma3_plan,
    gguf=GGUF,
    unused=("model.vision_tower.", "model.multi_modal_projector."),
)
