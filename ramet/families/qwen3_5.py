"""Qwen3.5: three layers of Gated DeltaNet to one of gated attention; transformers' Qwen3_5ForCausalLM, and the text
model of Qwen3_5ForConditionalGeneration.

Its rotary embedding has three axes, for images. A text's positions are the same on all of them, which makes it the
plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from ramet.families.configuration import attention_shape, biased_products, layer_kinds, model_shape, require
from ramet.families.family import THOUGHTLESS, Family
from ramet.families.plans import (
    LAYER_NORMS,
    QK_NORMS,
    add_one,
    attention_plan,
    layers_plan,
    mlp_plan,
    norms,
    outer_plan,
    products,
)
from ramet.families.weight import Plan, Weight
from ramet.layers.attention import AttentionShape
from ramet.layers.experts import ExpertsShape
from ramet.layers.gated_delta import DeltaShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

UNUSED = ("model.visual.", "mtp.")  # the tower for images, and the head for speculation


def hybrid_shape(config: Any, mlp: MLPShape | ExpertsShape) -> ModelShape:
    """The keys that transformers' Qwen3_5TextConfig and Qwen3_5MoeTextConfig share."""
    require(config, "hidden_act", "silu")
    require(config, "attn_output_gate", True)  # published configurations say it; transformers knows no other
    mixers: dict[str, AttentionShape | DeltaShape] = {
        "linear_attention": _delta(config),
        "full_attention": attention_shape(config, biased=biased_products(config), qk_norm=True, gated=True),
    }
    layers = tuple(LayerShape(mixers[kind], mlp) for kind in layer_kinds(config, *mixers))
    return model_shape(config, layers)


def hybrid_plan(shape: ModelShape, names: Collection[str], mlp: Callable[[LayerShape, str], Plan]) -> Plan:
    """Parameters of a hybrid; `mlp` names those of a layer's MLP, given the layer and what its names begin with."""

    def own(layer: LayerShape, at: str) -> Plan:
        return {
            **norms(at, LAYER_NORMS, shape.hidden_size, add_one),
            **_mixer_plan(shape.hidden_size, layer.mixer, at),
            **mlp(layer, at),
        }

    return outer_plan(shape, names, add_one) | layers_plan(shape, names, own)


def _dense_shape(config: Any) -> ModelShape:
    return hybrid_shape(config, MLPShape(config.intermediate_size))


def _dense_plan(shape: ModelShape, names: Collection[str]) -> Plan:
    return hybrid_plan(shape, names, partial(mlp_plan, shape))


def _delta(config: Any) -> DeltaShape:
    return DeltaShape(
        n_key_heads=config.linear_num_key_heads,
        n_value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
    )


def _mixer_plan(hidden: int, mixer: AttentionShape | DeltaShape, at: str) -> Plan:
    if isinstance(mixer, DeltaShape):
        return _delta_plan(hidden, mixer, f"{at}.linear_attn")
    return _attention_plan(hidden, mixer, f"{at}.self_attn")


def _attention_plan(hidden: int, mixer: AttentionShape, at: str) -> Plan:
    plan = attention_plan(hidden, mixer, at)
    for name in ("q_proj", "q_proj_bias") if "q_proj" in mixer.biased else ("q_proj",):
        plan[name] = Weight(plan[name].parts, plan[name].shape, partial(gates_last, mixer.n_heads))
    return plan | norms(at, QK_NORMS, mixer.head_dim, add_one)


def _delta_plan(hidden: int, mixer: DeltaShape, at: str) -> Plan:
    n_values = mixer.n_value_heads * mixer.value_dim
    parts = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    n_in = mixer.n_channels + n_values + 2 * mixer.n_value_heads
    return {
        **products(at, {"in_proj": (parts, n_in, hidden), "o_proj": (("out_proj",), hidden, n_values)}),
        "conv": Weight((f"{at}.conv1d.weight",), (mixer.n_channels, 1, mixer.conv_width)),
        "a_log": Weight((f"{at}.A_log",), (mixer.n_value_heads,)),
        "dt_bias": Weight((f"{at}.dt_bias",), (mixer.n_value_heads,)),
        "value_norm": Weight((f"{at}.norm.weight",), (mixer.value_dim,)),
    }


def gates_last(n_heads: int, weight: torch.Tensor) -> torch.Tensor:
    """Rows that are, head by head, a query's and its gate's, as all queries' and then all gates'."""
    pairs = weight.view(n_heads, 2, len(weight) // (2 * n_heads), *weight.shape[1:])
    return pairs.transpose(0, 1).reshape(weight.shape)


FAMILY = Family(("qwen3_5", "qwen3_5_text"), _dense_shape, _dense_plan, unused=UNUSED, template_variables=THOUGHTLESS)
