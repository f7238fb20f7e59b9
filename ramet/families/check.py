"""What no layer computes, whatever family a shape is of."""

from __future__ import annotations

import math

from ramet.errors import CheckpointError
from ramet.layers.attention import AttentionShape
from ramet.layers.gated_delta import DeltaShape
from ramet.layers.shape import ModelShape
from ramet.quoting import shown


def check_shape(shape: ModelShape) -> None:
    """Raise CheckpointError, which names what config.json says of it."""
    _check_real("rms_norm_eps", shape.eps)
    _check_real("final_logit_softcapping", shape.softcap)
    if not shape.layers:
        raise CheckpointError("config.json: num_hidden_layers is 0; a model has one layer at least")
    for mixer in {layer.mixer for layer in shape.layers}:
        if isinstance(mixer, AttentionShape):
            _check_attention(mixer)
        else:
            _check_delta(mixer)


def _check_attention(own: AttentionShape) -> None:
    if own.n_heads % own.n_kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads {own.n_heads} is no multiple of num_key_value_heads {own.n_kv_heads}"
        )
    if own.head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {own.head_dim}; pairs of a head's numbers turn: it is even")
    _check_real("query_pre_attn_scalar or head_dim: the scale of scores", own.scale)


def _check_delta(own: DeltaShape) -> None:
    if own.n_value_heads % own.n_key_heads:
        raise CheckpointError(
            f"config.json: linear_num_value_heads {own.n_value_heads} is no multiple of linear_num_key_heads "
            f"{own.n_key_heads}"
        )


def _check_real(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise CheckpointError(f"config.json: {name} is {shown(value)}; it must be a finite number from 0")
