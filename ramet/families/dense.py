"""Llama-like families: attention over all that came before and a gated MLP, in every layer alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
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
from ramet.families.plans import LAYER_NORMS, QK_NORMS, attention_plan, layers_plan, mlp_plan, norms, outer_plan
from ramet.families.weight import Plan
from ramet.layers.attention import AttentionShape
from ramet.layers.experts import ExpertsShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"


def dense_shape(
    config: Any,
    *,
    qk_norm: bool,
    biased: tuple[str, ...] | None = None,
    windows: bool = False,
    mlp: ExpertsShape | None = None,
) -> ModelShape:
    """The keys that Llama-like configurations share (transformers' LlamaConfig and its kin). biased: the products of
    attention that have biases; None where the configuration says. windows: whether layers may have one. mlp: what
    layers have instead of a gated MLP."""
    require(config, "hidden_act", "silu")
    require_whole_heads(config)
    dense = mlp or MLPShape(config.intermediate_size, bias=bool(getattr(config, "mlp_bias", False)))
    with_bias = biased_products(config) if biased is None else biased
    attention = partial(attention_shape, config, biased=with_bias, qk_norm=qk_norm)
    kinds = layer_kinds(config, *((_WINDOWED,) if windows else ()), _WHOLE)
    layers = (LayerShape(attention(window=window_of(config, kind, _WINDOWED)), dense) for kind in kinds)
    return model_shape(config, layers)


def dense_plan(shape: ModelShape, names: Collection[str], mlp: Callable[[LayerShape, str], Plan] | None = None) -> Plan:
    """Parameters of Llama-like checkpoints. mlp: names those of a layer's MLP, where it is none of the usual, given the
    layer and what its names begin with."""
    own = partial(_layer, shape, mlp or partial(mlp_plan, shape))
    return outer_plan(shape, names, None) | layers_plan(shape, names, own)


def _layer(shape: ModelShape, mlp: Callable[[LayerShape, str], Plan], layer: LayerShape, at: str) -> Plan:
    hidden, mixer = shape.hidden_size, layer.mixer
    assert isinstance(mixer, AttentionShape)
    plan = norms(at, LAYER_NORMS, hidden) | attention_plan(hidden, mixer, f"{at}.self_attn") | mlp(layer, at)
    return plan | norms(f"{at}.self_attn", QK_NORMS, mixer.head_dim) if mixer.qk_norm else plan
