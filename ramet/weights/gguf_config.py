"""The configuration that a GGUF file's metadata describes, as `transformers` would have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ramet.config import make_config
from ramet.errors import CheckpointError
from ramet.foreign import MOST_INT32, Fields, is_whole
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
# what else is read of them, by model type
_READ = (
    *_SIZES, _EPS, "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
)  # fmt: skip
_READ_GEMMA3 = (
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa", "final_logit_softcapping",
    "attn_logit_softcapping",
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
    model_type: str,
    *,
    where: str,
    vocab_size: int,
    tied: bool,
    biased: bool,
    rope_factors: Sequence[float] | None,
    held: Held | None = None,
) -> PretrainedConfig:
    """The configuration that GGUF metadata describes, of a file `where` that holds `held`. `rope_factors` [D/2] divide
    the frequencies (Llama 3.1's). Raises CheckpointError."""
    own = _Own(Fields(metadata, where), held)
    raw: dict[str, Any] = {name: own.size(key, name) for key, name in _SIZES.items()}
    raw["rms_norm_eps"] = own.real(_EPS)
    heads = raw["num_attention_heads"]
    raw["num_key_value_heads"] = own.size("attention.head_count_kv", "num_key_value_heads", heads)
    raw["head_dim"] = _head_dim(own, raw["hidden_size"] // heads)
    raw["rope_parameters"] = _rope(own, raw["max_position_embeddings"], rope_factors, raw["head_dim"])
    windowed = model_type == "gemma3_text"
    _check_keys(own, {*_READ, *(_READ_GEMMA3 if windowed else ())})
    for key, name in _TOKEN_IDS.items():
        raw[name] = own.fields.whole(f"tokenizer.ggml.{key}_token_id", most=vocab_size - 1)
    raw |= {"model_type": model_type, "vocab_size": vocab_size, "tie_word_embeddings": tied, "attention_bias": biased}
    if windowed:
        raw |= _gemma3(own, raw)
    return make_config(raw, None, where)


class _Own:
    """The keys below the architecture's name. `size` and `real` require one that has no default."""

    def __init__(self, fields: Fields, held: Held | None) -> None:
        self.fields, self.architecture, self._held = fields, str(fields["general.architecture"]), held

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def size(self, key: str, name: str, default: int | None = None) -> int:
        """A number of layers, heads, rows and the like, for which `name` is transformers' word."""
        if isinstance(self.fields.get(self.full(key)), list):
            raise self._missing(key, "differs from layer to layer, which is not served")
        most, _ = self._held.most(name) if self._held else (MOST_INT32, "")
        found = self.fields.whole(self.full(key), least=1, most=most)
        if found is None and default is None:
            raise self._missing(key, "is missing")
        return found or default or 0

    def real(self, key: str, default: float | None = None) -> float:
        found = self.fields.real(self.full(key))
        if found is None and default is None:
            raise self._missing(key, "is missing")
        return found or default or 0.0

    def _missing(self, key: str, state: str) -> CheckpointError:
        return CheckpointError(f"{self.fields.where}: {self.full(key)} {state}; convert the model again")


def _check_keys(own: _Own, read: set[str]) -> None:
    """Raise CheckpointError for a key of the architecture that may change what is computed and that is not read."""
    for full, value in own.fields.items():
        key = full.removeprefix(f"{own.architecture}.")
        idle = key in read or key in _IDLE or (key in _NEUTRAL and value == _NEUTRAL[key])
        if key != full and not idle:
            raise CheckpointError(
                f"{own.fields.where}: {cut(full)} is {shown(value)}, which is not served for this architecture"
            )


def _head_dim(own: _Own, default: int) -> int:
    size = own.size("attention.key_length", "head_dim", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := own.fields.whole(own.full(key))) not in (None, size):
            raise CheckpointError(f"{own.fields.where}: {own.full(key)} is {other}, but heads have {size}; not served")
    return size


def _gemma3(own: _Own, raw: Mapping[str, Any]) -> dict[str, Any]:
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


def _windowed(own: _Own, n_layers: int) -> list[bool]:
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


def _rope(own: _Own, length: int, factors: Sequence[float] | None, head_dim: int) -> dict[str, Any]:
    prefix, where = own.full("rope"), own.fields.where
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
