"""Configurations of `transformers`: read once, from config.json or from GGUF metadata, typed and loud."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ramet.errors import CheckpointError
from ramet.keys import KEYS, check_keys, read_keys

if TYPE_CHECKING:  # importing transformers takes seconds
    from transformers import PretrainedConfig

_TWINS = {"llada2_moe_veomni": "llada2_moe"}  # the same model under the name that a framework trains it by

# GGUF's keys, below the architecture's name, and transformers' for the same thing
_GGUF_REQUIRED = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# what else is read of them, by model type
_GGUF_READ = (
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
)  # fmt: skip
_GGUF_READ_GEMMA3 = (
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa", "final_logit_softcapping",
    "attn_logit_softcapping",
)  # fmt: skip
# what changes nothing, whatever it says, and what does not where it says this
_GGUF_IDLE = ("vocab_size", "rope.scaling.finetuned")
_GGUF_NEUTRAL: dict[str, object] = {
    "attention.causal": True, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0, "attention.sliding_window": 0,
    "embedding_scale": 1, "expert_count": 0, "expert_used_count": 0, "expert_weights_scale": 1, "logit_scale": 1,
    "pooling_type": 0, "residual_scale": 1, "rope.scaling.attn_factor": 1, "use_parallel_residual": False,
}  # fmt: skip
_GGUF_TOKEN_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def read_config(directory: Path, known: Collection[str] | None = None) -> PretrainedConfig:
    """The configuration of a checkpoint directory.

    `known` are the model types that can be served; None takes every one that transformers has. The flag
    `tie_word_embeddings` is also found where it is nested under `text_config`. Raises CheckpointError.
    """
    path = directory / "config.json"
    raw = read_json(path, f"{path} is missing: a checkpoint directory holds config.json beside its *.safetensors")
    config = make_config(raw, known, str(path))
    tied = raw.get("tie_word_embeddings", (raw.get("text_config") or {}).get("tie_word_embeddings"))
    config.tie_word_embeddings = bool(config.get_text_config().tie_word_embeddings if tied is None else tied)
    return config


def make_config(raw: Mapping[str, Any], known: Collection[str] | None, where: str) -> PretrainedConfig:
    """transformers' class of the `model_type` that `raw` names, its plain one for those of KEYS, filled from it."""
    from transformers import CONFIG_MAPPING, PretrainedConfig

    model_type = raw.get("model_type")
    if model_type in _TWINS:
        return make_config({**raw, "model_type": _TWINS[model_type]}, known, where)
    readable = CONFIG_MAPPING.keys() | KEYS.keys()
    choices = sorted(readable if known is None else known)
    if model_type not in choices or model_type not in readable:
        raise CheckpointError(f"{where}: unknown model_type {model_type!r}; known are {', '.join(choices)}")
    if model_type in KEYS:
        config = PretrainedConfig()
        for key, value in read_keys(raw, where).items():
            setattr(config, key, value)
        return config
    check_keys(raw, where, partial(hasattr, CONFIG_MAPPING[model_type]))
    try:
        config = CONFIG_MAPPING[model_type].from_dict(dict(raw))
    except Exception as error:  # each class has validators of its own, which raise what they like
        raise CheckpointError(f"{where}: not a valid configuration of {model_type}: {error}") from error
    text = config.get_text_config()
    check_keys(raw.get("text_config") or {}, where, partial(hasattr, type(text)))
    return config


def gguf_config(
    metadata: Mapping[str, Any],
    model_type: str,
    *,
    where: str,
    vocab_size: int,
    tied: bool,
    biased: bool,
    rope_factors: Sequence[float] | None,
) -> PretrainedConfig:
    """The configuration that GGUF metadata describes. `rope_factors` [D/2] divide the frequencies (Llama 3.1's)."""
    architecture = str(metadata["general.architecture"])
    raw: dict[str, Any] = {
        name: _gguf_number(metadata, f"{architecture}.{key}", where) for key, name in _GGUF_REQUIRED.items()
    }
    heads = raw["num_attention_heads"]
    raw["num_key_value_heads"] = _gguf_number(metadata, f"{architecture}.attention.head_count_kv", where, heads)
    raw["head_dim"] = _gguf_head_dim(metadata, architecture, raw["hidden_size"] // heads, where)
    raw["rope_parameters"] = _gguf_rope(metadata, architecture, raw["max_position_embeddings"], rope_factors, where)
    windowed = model_type == "gemma3_text"
    _check_gguf_keys(metadata, architecture, {*_GGUF_READ, *(_GGUF_READ_GEMMA3 if windowed else ())}, where)
    for key, name in _GGUF_TOKEN_IDS.items():
        raw[name] = metadata.get(f"tokenizer.ggml.{key}_token_id")
    raw |= {"model_type": model_type, "vocab_size": vocab_size, "tie_word_embeddings": tied, "attention_bias": biased}
    if windowed:
        raw |= _gguf_gemma3(metadata, architecture, raw, where)
    return make_config(raw, None, where)


def rope_frequencies(config: PretrainedConfig, layer_type: str | None = None) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, float32 [D/2], and the factor on cosine and sine, of any kind of rope scaling.

    They hold for every position below `max_position_embeddings`. `layer_type` picks among the parameters of models
    that have several. Raises CheckpointError for a kind whose frequencies depend on the length of each sequence.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = layer_config(config, layer_type)
    config.standardize_rope_params()
    rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    kind = rope["rope_type"]
    if kind == "default":
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        size = int(head * rope.get("partial_rotary_factor", 1.0))
        return 1.0 / (rope["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        raise CheckpointError(f"config.json: unknown rope_type {kind!r}; known are {sorted(ROPE_INIT_FUNCTIONS)}")
    original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    switches = kind == "longrope" and rope["short_factor"] != rope["long_factor"]
    if switches and config.max_position_embeddings > original:
        raise CheckpointError(
            "config.json: longrope changes its frequencies with each sequence's length, so sequences could not share "
            f"their keys; set max_position_embeddings to {original} to serve the model up to that length"
        )
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, None, layer_type=layer_type)
    return frequencies.to(torch.float32), float(scale)


def layer_config(config: PretrainedConfig, layer_type: str | None) -> PretrainedConfig:
    """The configuration that holds for layers of a type, where it differs from type to type (Gemma 4's head sizes)."""
    if layer_type is None or not getattr(config, "is_heterogeneous", False):
        return config
    return config.per_layer_config[layer_type]


def read_json(path: Path, missing: str | None = None) -> dict[str, Any]:
    """A JSON object. A file that is not there gives {}, or raises CheckpointError with the text `missing`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        if missing is None:
            return {}
        raise CheckpointError(missing) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _gguf_number(metadata: Mapping[str, Any], key: str, where: str, default: int | None = None) -> Any:
    value = metadata.get(key, default)
    if isinstance(value, int | float):
        return value
    state = "is missing" if value is None else "differs from layer to layer, which is not served"
    raise CheckpointError(f"{where}: {key} {state}; convert the model again")


def _check_gguf_keys(metadata: Mapping[str, Any], architecture: str, read: set[str], where: str) -> None:
    """Raise CheckpointError for a key of the architecture that may change what is computed and that is not read."""
    known = read | _GGUF_REQUIRED.keys() | set(_GGUF_IDLE)
    for full, value in metadata.items():
        key = full.removeprefix(f"{architecture}.")
        if key != full and key not in known and not (key in _GGUF_NEUTRAL and value == _GGUF_NEUTRAL[key]):
            raise CheckpointError(f"{where}: {full} is {value!r}, which is not served for this architecture")


def _gguf_head_dim(metadata: Mapping[str, Any], architecture: str, default: int, where: str) -> int:
    size = int(_gguf_number(metadata, f"{architecture}.attention.key_length", where, default))
    for key in ("attention.value_length", "rope.dimension_count"):
        other = metadata.get(f"{architecture}.{key}", size)
        if other != size:
            raise CheckpointError(f"{where}: {architecture}.{key} is {other}, but heads have {size}; not served")
    return size


def _gguf_gemma3(metadata: Mapping[str, Any], architecture: str, raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What sets Gemma 3 apart. Converters write neither the pattern of its layers nor the base of the sliding ones'
    frequencies, nor the scale of scores, in which the one of 62 layers (27B) differs from all others."""
    n_layers, of_six = raw["num_hidden_layers"], 6
    pattern = metadata.get(f"{architecture}.attention.sliding_window_pattern", of_six)
    windowed = pattern if isinstance(pattern, list) else [(i + 1) % pattern > 0 for i in range(n_layers)]
    theta = float(metadata.get(f"{architecture}.rope.freq_base_swa", 10000.0))
    per_head = raw["hidden_size"] // raw["num_attention_heads"]
    return {
        "sliding_window": _gguf_number(metadata, f"{architecture}.attention.sliding_window", where),
        "layer_types": ["sliding_attention" if own else "full_attention" for own in windowed],
        "rope_parameters": {
            "full_attention": raw["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        },
        "query_pre_attn_scalar": per_head if n_layers == 62 else raw["head_dim"],
        "final_logit_softcapping": metadata.get(f"{architecture}.final_logit_softcapping"),
        "attn_logit_softcapping": metadata.get(f"{architecture}.attn_logit_softcapping"),
    }


def _gguf_rope(
    metadata: Mapping[str, Any], architecture: str, length: int, factors: Sequence[float] | None, where: str
) -> dict[str, Any]:
    prefix = f"{architecture}.rope"
    factor = metadata.get(f"{prefix}.scaling.factor")
    # llama.cpp takes a factor without a type as a linear one.
    kind = metadata.get(f"{prefix}.scaling.type", "linear" if factor else "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(metadata.get(f"{prefix}.freq_base", 10000.0))}
    if factors is not None and kind != "none":
        raise CheckpointError(f"{where}: {prefix}.scaling.type is {kind!r}, beside rope_freqs.weight; not served")
    if factors is not None:  # longrope with one list of factors for short and long is just a list of factors
        listed = list(factors)
        rope |= {"rope_type": "longrope", "short_factor": listed, "long_factor": listed, "attention_factor": 1.0}
        return rope | {"original_max_position_embeddings": length}
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": float(_gguf_number(metadata, f"{prefix}.scaling.factor", where))}
    elif kind != "none":
        raise CheckpointError(f"{where}: unknown {prefix}.scaling.type {kind!r}; known are none, linear and yarn")
    if kind == "yarn":
        original = _gguf_number(metadata, f"{prefix}.scaling.original_context_length", where)
        rope["original_max_position_embeddings"] = original
    return rope
