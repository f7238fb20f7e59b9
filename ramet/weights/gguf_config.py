"""The configuration that a GGUF file's metadata describes, in `transformers`' class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ramet.config import make_config
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.families.gguf import GgufArchitecture, GgufKeys
from ramet.foreign import Fields
from ramet.quoting import cut, shown
from ramet.sizes import Held

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# GGUF's keys, below the architecture's name, and transformers' for the same thing
_SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_EPS = "attention.layer_norm_rms_epsilon"
_READ = (
    *_SIZES, _EPS, "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
)  # fmt: skip
# what changes nothing, whatever it says, and what does not where it says this
_IDLE = ("vocab_size", "rope.scaling.finetuned")
_NEUTRAL: dict[str, object] = {
    "attention.causal": True, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0, "attention.sliding_window": 0,
    "embedding_scale": 1, "expert_count": 0, "expert_used_count": 0, "expert_weights_scale": 1, "logit_scale": 1,
    "pooling_type": 0, "residual_scale": 1, "rope.scaling.attn_factor": 1, "use_parallel_residual": False,
}  # fmt: skip
_TOKEN_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def gguf_config(
    metadata: Mapping[str, Any],
    architecture: GgufArchitecture,
    *,
    where: str,
    vocab_size: int,
    tied: bool,
    biased: bool,
    rope_factors: Sequence[float] | None,
    held: Held | None = None,
) -> PretrainedConfig:
    """The configuration that GGUF metadata describes, of a file `where` that holds `held`. `rope_factors` [D/2] divide
    the frequencies. Raises CheckpointError."""
    own = GgufKeys(Fields(metadata, where), held)
    raw: dict[str, Any] = {name: own.size(key, name) for key, name in _SIZES.items()}
    raw["rms_norm_eps"] = own.real(_EPS)
    heads = raw["num_attention_heads"]
    raw["num_key_value_heads"] = own.size("attention.head_count_kv", "num_key_value_heads", heads)
    raw["head_dim"] = _head_dim(own, raw["hidden_size"] // heads)
    raw["rope_parameters"] = _rope(own, raw["max_position_embeddings"], rope_factors, raw["head_dim"])
    _check_keys(own, {*_READ, *architecture.keys})
    for key, name in _TOKEN_IDS.items():
        raw[name] = own.fields.whole(f"tokenizer.ggml.{key}_token_id", most=vocab_size - 1)
    raw |= {"vocab_size": vocab_size, "tie_word_embeddings": tied, "attention_bias": biased}
    raw |= {"model_type": architecture.model_type, **architecture.config(own, raw)}
    return make_config(raw, FAMILIES, where)


def _check_keys(own: GgufKeys, read: set[str]) -> None:
    """Raise CheckpointError for a key of the architecture that may change what is computed and that is not read."""
    for full, value in own.fields.items():
        key = full.removeprefix(f"{own.architecture}.")
        idle = key in read or key in _IDLE or (key in _NEUTRAL and value == _NEUTRAL[key])
        if key != full and not idle:
            raise CheckpointError(
                f"{own.fields.where}: {cut(full)} is {shown(value)}, which is not served for this architecture"
            )


def _head_dim(own: GgufKeys, default: int) -> int:
    size = own.size("attention.key_length", "head_dim", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := own.fields.whole(own.full(key))) not in (None, size):
            raise CheckpointError(f"{own.fields.where}: {own.full(key)} is {other}, but heads have {size}; not served")
    return size


def _rope(own: GgufKeys, length: int, factors: Sequence[float] | None, head_dim: int) -> dict[str, Any]:
    prefix = own.full("rope")
    where = own.fields.where
    factor = own.fields.real(f"{prefix}.scaling.factor", zero=True)
    # llama.cpp takes a factor without a type as a linear one.
    kind = own.fields.text(f"{prefix}.scaling.type") or ("linear" if factor else "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(own.real("rope.freq_base", 1e4))}
    if factors is not None:
        if kind != "none":
            raise CheckpointError(
                f"{where}: {prefix}.scaling.type is {shown(kind)}, beside rope_freqs.weight; not served"
            )
        if len(factors) * 2 != head_dim or not all(each > 0 for each in factors):
            raise CheckpointError(
                f"{where}: rope_freqs.weight must hold {head_dim // 2} numbers above 0, half a head's"
            )
        # longrope with one list of factors for short and long is just a list of factors
        listed = list(factors)
        rope |= {"rope_type": "longrope", "short_factor": listed, "long_factor": listed, "attention_factor": 1.0}
        return rope | {"original_max_position_embeddings": length}
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": float(own.real("rope.scaling.factor"))}
    elif kind != "none":
        raise CheckpointError(f"{where}: unknown {prefix}.scaling.type {shown(kind)}; known are none, linear and yarn")
    if kind == "yarn":
        original = own.size("rope.scaling.original_context_length", "original_max_position_embeddings")
        rope["original_max_position_embeddings"] = original
    return rope
