"""What families read of a configuration: what they require, the kinds of layers, the sizes that all have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ramet.errors import CheckpointError
from ramet.families.plans import QKV
from ramet.layers.attention import AttentionShape
from ramet.layers.layer import LayerShape
from ramet.layers.shape import ModelShape
from ramet.quoting import shown

_LISTED = 8  # names in an error


def require(config: Any, key: str, *allowed: object) -> None:
    """Raise CheckpointError for a configuration with a value that the family's layers do not implement."""
    value = getattr(config, key, allowed[0])
    if value not in allowed:
        names = " or ".join(repr(a) for a in allowed)
        raise CheckpointError(f"config.json: {key} is {shown(value)}; {config.model_type} is implemented for {names}")


def require_whole_heads(config: Any) -> None:
    """Refuse a rotary embedding that turns a part of each head."""
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        part = each.get("partial_rotary_factor", 1)
        if part not in (None, 1) and each.get("rope_type") != "proportional":  # which has no part to it but zeros
            raise CheckpointError(
                f"config.json: partial_rotary_factor is {shown(part)}; {config.model_type} is implemented for whole "
                "heads"
            )


def window_of(config: Any, kind: str, windowed: str) -> int:
    """Of a layer of type `kind`: rows that it sees at most where that is the `windowed` one; 0 for all."""
    if kind != windowed:
        return 0
    if not (window := getattr(config, "sliding_window", None)):
        raise CheckpointError(f"config.json: layer_types has {kind}, but sliding_window is {shown(window)}")
    return int(window)


def layer_kinds(config: Any, *known: str) -> list[str]:
    """The type of each layer, which must be one of the `known`; layers without a type are of the last of these."""
    n_layers = config.num_hidden_layers
    kinds = list(getattr(config, "layer_types", None) or [known[-1]] * n_layers)
    if len(kinds) != n_layers:
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for num_hidden_layers {n_layers}")
    if unknown := sorted(set(kinds) - set(known)):
        listed = " and ".join(shown(kind).strip("'") for kind in unknown[:_LISTED])
        raise CheckpointError(f"config.json: layer_types has {listed}; {config.model_type} has {' and '.join(known)}")
    return kinds


def biased_products(config: Any) -> tuple[str, ...]:
    """The products of attention that have biases: all or none, as the configuration says."""
    return (*QKV, "o_proj") if config.attention_bias else ()


def attention_shape(config: Any, **more: Any) -> AttentionShape:
    """Attention with the heads that the configuration has; `more` are other fields, or these otherwise."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = {"n_heads": config.num_attention_heads, "n_kv_heads": config.num_key_value_heads}
    return AttentionShape(**heads | {"head_dim": head_dim, "scale": head_dim**-0.5} | more)


def model_shape(config: Any, layers: Iterable[LayerShape], **more: Any) -> ModelShape:
    """A decoder of these layers, with the sizes that all configurations have; `more` are further fields."""
    return ModelShape(
        config.vocab_size,
        config.hidden_size,
        tuple(layers),
        config.rms_norm_eps,
        config.max_position_embeddings,
        **more,
    )
