"""Gemma 4: sliding and full layers with heads of different sizes, keys shared between layers, embeddings of each
layer's own, experts beside the MLP; transformers' Gemma4ForCausalLM, and Gemma4UnifiedForCausalLM, whose layers are
the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial
from typing import Any

from ramet.config import layer_config
from ramet.errors import CheckpointError
from ramet.families.configuration import (
    attention_shape,
    layer_kinds,
    model_shape,
    require,
    require_whole_heads,
    window_of,
)
from ramet.families.family import THOUGHTLESS, Family
from ramet.families.plans import OUTPUT_NORMS, QK_NORMS, layers_plan, mlp_plan, norms, outer_plan, prefix, products
from ramet.families.weight import Plan, Weight
from ramet.layers.attention import AttentionShape
from ramet.layers.dense_experts import DenseExpertsShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.per_layer import PerLayerShape
from ramet.layers.shape import ModelShape

_EXPERTS_NORMS = {
    "dense_post_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_post_norm": "post_feedforward_layernorm_2",
}
SLIDING, FULL = "sliding_attention", "full_attention"


def gemma4_shape(config: Any) -> ModelShape:
    """Reads transformers' Gemma4TextConfig or Gemma4UnifiedTextConfig."""
    require_text(config)
    kinds = layer_kinds(config, SLIDING, FULL)
    rotaries = tuple(sorted(set(kinds)))
    owners = _owners(kinds, len(kinds) - config.num_kv_shared_layers)
    layers = [
        LayerShape(
            gemma4_attention(
                config, kind, rotaries, keys_are_values=config.attention_k_eq_v and kind == FULL, keys_of=owner
            ),
            _mlp(config, owner),
            post_norms=True,
            scaled=True,
        )
        for kind, owner in zip(kinds, owners, strict=True)
    ]
    return model_shape(
        config,
        layers,
        rotaries=rotaries,
        embedding_scale=config.hidden_size**0.5,
        softcap=config.final_logit_softcapping or 0.0,
        per_layer=_per_layer(config),
    )


def gemma4_plan(shape: ModelShape, names: Collection[str]) -> Plan:
    """Parameters of the text model, which in a multimodal checkpoint stands inside another."""
    plan, at = outer_plan(shape, names, None), prefix(names)
    if shape.per_layer is not None:
        known, size = shape.per_layer.vocab_size, shape.per_layer.size
        rows, hidden = len(shape.layers) * size, shape.hidden_size
        plan["per_layer_embedding"] = Weight((f"{at}embed_tokens_per_layer.weight",), (known, rows))
        plan["per_layer_model_proj"] = Weight((f"{at}per_layer_model_projection.weight",), (rows, hidden))
        plan["per_layer_norm"] = Weight((f"{at}per_layer_projection_norm.weight",), (size,))
    return plan | layers_plan(shape, names, partial(gemma4_layer_plan, shape))


def gemma4_idle(shape: ModelShape, names: Collection[str]) -> tuple[str, ...]:
    """Keys and values of layers that read another's: published checkpoints have them, transformers drops them."""
    shared = [i for i, layer in enumerate(shape.layers) if _mixer(layer).keys_of is not None]
    parts = ("k_proj", "v_proj", "k_norm")
    return tuple(f"{prefix(names)}layers.{i}.self_attn.{part}.weight" for i in shared for part in parts)


def _owners(kinds: list[str], n_own: int) -> list[int | None]:
    """For each layer the one whose keys it reads: the last of its type among the first `n_own`; None for these."""
    last = {kind: i for i, kind in enumerate(kinds[:n_own])}
    if missing := sorted(set(kinds) - set(last)):
        without = f"no layer of type {' or '.join(missing)} with keys of its own"
        raise CheckpointError(f"config.json: num_kv_shared_layers leaves {without}")
    return [None if i < n_own else last[kind] for i, kind in enumerate(kinds)]


def require_text(config: Any) -> None:
    """Refuse a text model that the layers here do not compute."""
    require_whole_heads(config)
    require(config, "hidden_activation", "gelu_pytorch_tanh")
    require(config, "attention_bias", False)
    require(config, "use_bidirectional_attention", None, "vision")  # the latter is about images alone


def gemma4_attention(
    config: Any, kind: str, rotaries: tuple[str, ...], *, keys_are_values: bool, keys_of: int | None = None
) -> AttentionShape:
    """Attention of a layer of type `kind`."""
    return attention_shape(
        layer_config(config, kind),
        scale=1.0,
        window=window_of(config, kind, SLIDING),
        rotary=rotaries.index(kind),
        qk_norm=True,
        unit_values=True,
        keys_are_values=keys_are_values,
        keys_of=keys_of,
    )


def _mlp(config: Any, owner: int | None) -> MLPShape | DenseExpertsShape:
    wide = config.use_double_wide_mlp and owner is not None
    dense = MLPShape(config.intermediate_size * (2 if wide else 1), "gelu_tanh")
    if not getattr(config, "enable_moe_block", False):
        return dense
    return DenseExpertsShape(dense, config.num_experts, config.top_k_experts, config.moe_intermediate_size)


def _per_layer(config: Any) -> PerLayerShape | None:
    size = getattr(config, "hidden_size_per_layer_input", None)
    if not size:
        return None
    known = config.vocab_size_per_layer_input
    if known < config.vocab_size:
        raise CheckpointError(
            f"config.json: vocab_size_per_layer_input is {known}, fewer than the {config.vocab_size} of vocab_size"
        )
    return PerLayerShape(known, size)


def gemma4_layer_plan(shape: ModelShape, layer: LayerShape, at: str) -> Plan:
    """Parameters of a layer, whose names begin with `at`."""
    plan = norms(at, OUTPUT_NORMS, shape.hidden_size)
    plan["scale"] = Weight((f"{at}.layer_scalar",), (1,))
    plan |= _attention_plan(shape, _mixer(layer), f"{at}.self_attn") | _mlp_plan(shape, layer, at)
    if shape.per_layer is not None:
        hidden, size = shape.hidden_size, shape.per_layer.size
        plan["per_layer_gate"] = Weight((f"{at}.per_layer_input_gate.weight",), (size, hidden))
        plan["per_layer_proj"] = Weight((f"{at}.per_layer_projection.weight",), (hidden, size))
        plan["per_layer_post_norm"] = Weight((f"{at}.post_per_layer_input_norm.weight",), (hidden,))
    return plan


def _attention_plan(shape: ModelShape, mixer: AttentionShape, at: str) -> Plan:
    wide, narrow = mixer.n_heads * mixer.head_dim, mixer.n_kv_heads * mixer.head_dim
    hidden, own_norms = shape.hidden_size, {"q_norm": "q_norm"}
    sizes: dict[str, tuple[tuple[str, ...], int, int]] = {
        "q_proj": (("q_proj",), wide, hidden),
        "o_proj": (("o_proj",), hidden, wide),
    }
    if mixer.keys_of is None:
        parts = ("k_proj",) if mixer.keys_are_values else ("k_proj", "v_proj")
        sizes["kv_proj"] = parts, len(parts) * narrow, hidden
        own_norms = QK_NORMS
    return products(at, sizes) | norms(at, own_norms, mixer.head_dim)


def _mlp_plan(shape: ModelShape, layer: LayerShape, at: str) -> Plan:
    if isinstance(layer.mlp, DenseExpertsShape):
        dense = dataclasses.replace(layer, mlp=layer.mlp.dense)
        return mlp_plan(shape, dense, at) | _experts_plan(shape.hidden_size, layer.mlp, at)
    return mlp_plan(shape, layer, at)


def _experts_plan(hidden: int, mlp: DenseExpertsShape, at: str) -> Plan:
    n, size = mlp.n_experts, mlp.size
    return {
        "router": Weight((f"{at}.router.proj.weight",), (n, hidden)),
        "router_scale": Weight((f"{at}.router.scale",), (hidden,)),
        "expert_scale": Weight((f"{at}.router.per_expert_scale",), (n,)),
        "gate_up_experts": Weight((f"{at}.experts.gate_up_proj",), (n, 2 * size, hidden)),
        "down_experts": Weight((f"{at}.experts.down_proj",), (n, hidden, size)),
        **norms(at, _EXPERTS_NORMS, hidden),
    }


def _mixer(layer: LayerShape) -> AttentionShape:
    assert isinstance(layer.mixer, AttentionShape)
    return layer.mixer


_TOWERS = ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "vision_embedder")
FAMILY = Family(
    ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    gemma4_shape,
    gemma4_plan,
    unused=tuple(f"model.{tower}." for tower in _TOWERS),
    idle=gemma4_idle,
    template_variables=THOUGHTLESS,
)
