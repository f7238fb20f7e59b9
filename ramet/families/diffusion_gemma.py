"""DiffusionGemma: Gemma 4's layers of experts in two modes, transformers' DiffusionGemmaForBlockDiffusion.

Rows with block 1 are what it calls the encoder's: the prompt and finished canvases, which leave keys and values. Those
of a segment that is WHOLE are the decoder's: a canvas. Both have the same weights but for each layer's scale, and a
canvas begins from embeddings that are conditioned on the step before.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ramet.errors import CheckpointError
from ramet.families.configuration import layer_kinds, model_shape
from ramet.families.family import THOUGHTLESS, Family
from ramet.families.gemma4 import FULL, SLIDING, gemma4_attention, gemma4_layer_plan, require_text
from ramet.families.plans import gated_products, layers_plan, outer_plan
from ramet.families.weight import Plan, Weight
from ramet.layers.dense_experts import DenseExpertsShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

_DECODER, _ENCODER = "model.decoder.", "model.encoder."
_EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")  # their number, those chosen, their size


def diffusion_gemma_shape(config: Any) -> ModelShape:
    """Reads transformers' DiffusionGemmaTextConfig."""
    require_text(config)
    kinds = layer_kinds(config, SLIDING, FULL)
    rotaries, dense = tuple(sorted(set(kinds))), MLPShape(config.intermediate_size, "gelu_tanh")
    mlp = DenseExpertsShape(dense, *(_number(config, key) for key in _EXPERTS))
    mixers = (gemma4_attention(config, kind, rotaries, keys_are_values=kind == FULL) for kind in kinds)
    return model_shape(
        config,
        (LayerShape(mixer, mlp, post_norms=True, scaled=True) for mixer in mixers),
        rotaries=rotaries,
        embedding_scale=config.hidden_size**0.5,
        softcap=config.final_logit_softcapping,
        conditioning=dense,
    )


def diffusion_gemma_plan(shape: ModelShape, names: Collection[str]) -> Plan:
    """Parameters of the text model."""
    assert shape.conditioning is not None
    hidden, at = shape.hidden_size, f"{_DECODER}self_conditioning"
    plan = outer_plan(shape, names, None) | layers_plan(shape, names, partial(_layer_plan, shape))
    own = gated_products(at, shape.conditioning, hidden) | {"norm": Weight((f"{at}.pre_norm.weight",), (hidden,))}
    return plan | {f"conditioning.{name}": weight for name, weight in own.items()}


def _number(config: Any, key: str) -> int:
    value = getattr(config, key)
    if not value:
        raise CheckpointError(f"config.json: {key} is {value!r}; every layer of {config.model_type} has experts")
    return int(value)


def _layer_plan(shape: ModelShape, layer: LayerShape, at: str) -> Plan:
    """Gemma 4's, with the scales of both modes: the encoder's, then the decoder's."""
    encoders = f"{_ENCODER}language_model.{at.removeprefix(_DECODER)}"
    scales = f"{encoders}.layer_scalar", f"{at}.layer_scalar"
    return gemma4_layer_plan(shape, layer, at) | {"scale": Weight(scales, (2,))}


FAMILY = Family(
    ("diffusion_gemma",),
    diffusion_gemma_shape,
    diffusion_gemma_plan,
    unused=tuple(f"{_ENCODER}{tower}." for tower in ("vision_tower", "embed_vision")),
    template_variables=THOUGHTLESS,
)
