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
from ramet.families.family import (
    THOUGHTLESS,
    Family,
    Plan,
    Weight,
    gated_products,
    layer_kinds,
    layers_plan,
    outer_plan,
)
from ramet.families.gemma4 import FULL, SLIDING, attention_shape, gemma4_layer_plan, require_text
from ramet.layers.shape import DenseExpertsShape, LayerShape, MLPShape, Shape

_DECODER, _ENCODER = "model.decoder.", "model.encoder."
_EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")  # their number, those chosen, their size


def diffusion_gemma_shape(config: Any) -> Shape:
    """Reads transformers' DiffusionGemmaTextConfig."""
    require_text(config)
    kinds = layer_kinds(config, SLIDING, FULL)
    rotaries, dense = tuple(sorted(set(kinds))), MLPShape(config.intermediate_size, "gelu_tanh")
    mlp = DenseExpertsShape(dense, *(_number(config, key) for key in _EXPERTS))
    mixers = (attention_shape(config, kind, rotaries, keys_are_values=kind == FULL) for kind in kinds)
    return Shape(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size,
        layers=tuple(LayerShape(mixer, mlp, post_norms=True, scaled=True) for mixer in mixers),
        eps=config.rms_norm_eps, max_positions=config.max_position_embeddings, rotaries=rotaries,
        embedding_scale=config.hidden_size**0.5, softcap=config.final_logit_softcapping, conditioning=dense,
    )  # fmt: skip


def diffusion_gemma_plan(shape: Shape, names: Collection[str]) -> Plan:
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


def _layer_plan(shape: Shape, layer: LayerShape, at: str) -> Plan:
    """Gemma 4's, with the scales of both modes: the encoder's, then the decoder's."""
    encoders = f"{_ENCODER}language_model.{at.removeprefix(_DECODER)}"
    scales = f"{encoders}.layer_scalar", f"{at}.layer_scalar"
    return gemma4_layer_plan(shape, layer, at) | {"scale": Weight(scales, (2,))}


FAMILY = Family(
    shape=diffusion_gemma_shape,
    plan=diffusion_gemma_plan,
    unused=tuple(f"{_ENCODER}{tower}." for tower in ("vision_tower", "embed_vision")),
    asked=THOUGHTLESS,
)
