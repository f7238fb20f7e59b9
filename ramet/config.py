"""Configurations of `transformers`: read once, typed and loud."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ramet.config_schema import ConfigSchema, check_keys, check_stored
from ramet.errors import CheckpointError
from ramet.foreign import Fields, read_json
from ramet.quoting import shown
from ramet.sizes import Held, check_sizes

if TYPE_CHECKING:  # importing transformers takes seconds
    from transformers import PretrainedConfig


class Described(Protocol):
    """What a family says of its configurations, see families/family.py."""

    @property
    def schema(self) -> type[ConfigSchema] | None: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


Known = Mapping[str, Described]  # the families that can be served, by model type


def raw_config(directory: Path, known: Known) -> dict[str, Any]:
    """Read config.json of a directory, whose model type must be known and whose sizes numbers. Raises
    CheckpointError."""
    path = directory / "config.json"
    raw = read_json(path, f"{path} is missing: a checkpoint directory holds config.json beside its *.safetensors")
    raw["model_type"] = _model_type(raw, known, str(path))
    check_stored(raw, str(path))
    check_sizes(raw, None, str(path))
    return raw


def config_of(raw: Mapping[str, Any], known: Known, where: str, held: Held | None = None) -> PretrainedConfig:
    """The configuration of a checkpoint directory whose config.json, named `where`, says `raw`, and whose files hold
    `held`. The flag `tie_word_embeddings` is also found where it is nested under `text_config`. Raises CheckpointError.
    """
    check_sizes(raw, held, where)
    config = make_config(raw, known, where)
    fields = Fields(raw, where)
    tied = [each.flag("tie_word_embeddings") for each in (fields, fields.inner("text_config"))]
    own = config.get_text_config().tie_word_embeddings
    config.tie_word_embeddings = bool(next((flag for flag in tied if flag is not None), own))
    return config


def make_config(raw: Mapping[str, Any], known: Known, where: str) -> PretrainedConfig:
    """transformers' class of the `model_type` that `raw` names, or its plain one where the family has a schema of its
    own, filled from it. Raises CheckpointError."""
    from transformers import CONFIG_MAPPING, PretrainedConfig

    model_type = _model_type(raw, known, where)
    raw = {**raw, "model_type": model_type}
    if (schema := known[model_type].schema) is not None:
        config = PretrainedConfig()
        for key, value in schema.read(raw, where).items():
            setattr(config, key, value)
        return config
    check_keys(raw, where, partial(hasattr, CONFIG_MAPPING[model_type]))
    inner = Fields(raw, where).inner("text_config")
    for each in (raw, inner):
        _check_plain(each, where)
    try:
        config = CONFIG_MAPPING[model_type].from_dict(dict(raw))
        text = config.get_text_config()
    except Exception as error:  # each class has validators of its own, which raise what they like
        raise CheckpointError(f"{where}: not a valid configuration of {model_type}: {error}") from error
    if not isinstance(text, PretrainedConfig):
        raise CheckpointError(f"{where}: {model_type} has no configuration of a text model inside, such as text_config")
    check_keys(inner, where, partial(hasattr, type(text)))
    return config


def _model_type(raw: Mapping[str, Any], known: Known, where: str) -> str:
    """The model type, by the family's name for it. Raises CheckpointError, which lists the known types."""
    from transformers import CONFIG_MAPPING

    found = raw.get("model_type")
    model_type = next((name for name, family in known.items() if found in family.aliases), found)
    family = known.get(model_type) if isinstance(model_type, str) else None
    if family is not None and (family.schema is not None or model_type in CONFIG_MAPPING):
        return str(model_type)
    raise CheckpointError(f"{where}: unknown model_type {shown(model_type)}; known are {', '.join(sorted(known))}")


def _check_plain(raw: Mapping[str, Any], where: str) -> None:
    """Refuse keys by the names of what configurations are made of: each is set on the object, over what is there."""
    from transformers import PretrainedConfig

    for key in raw:
        if key.startswith("__") or callable(own := getattr(PretrainedConfig, key, None)) or isinstance(own, dict):
            raise CheckpointError(f"{where}: {shown(key)} is no key of a configuration; take it away")


def rope_frequencies(config: PretrainedConfig, layer_type: str | None = None) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, float32 [D/2], and the factor on cosine and sine, of any kind of rope scaling.

    They hold for every position below `max_position_embeddings`. `layer_type` picks among the parameters of models
    that have several. Raises CheckpointError for a kind whose frequencies depend on the length of each sequence, and
    for parameters that give no frequencies of a head.
    """
    config = layer_config(config, layer_type)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    try:
        config.standardize_rope_params()
        rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
        frequencies, scale = _frequencies(config, rope, layer_type, head)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: rope_parameters describe no rotary embedding: {error}") from error
    usable = frequencies.ndim == 1 and 0 < 2 * len(frequencies) <= head and math.isfinite(scale)
    if not usable or not bool(frequencies.isfinite().all()):
        raise CheckpointError(f"config.json: rope_parameters give no frequencies of heads of {head}")
    return frequencies, scale


def _frequencies(config: PretrainedConfig, rope: Any, layer_type: str | None, head: int) -> tuple[torch.Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind, part = rope["rope_type"], rope.get("partial_rotary_factor")
    if part is not None and not 0 < part <= 1:  # else as long a list as it says
        raise ValueError(f"partial_rotary_factor is {shown(part)}, no part of a head")
    if kind == "default":
        size = int(head * rope.get("partial_rotary_factor", 1.0))
        return 1.0 / (rope["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        raise ValueError(f"unknown rope_type {shown(kind)}; known are {sorted(ROPE_INIT_FUNCTIONS)}")
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
