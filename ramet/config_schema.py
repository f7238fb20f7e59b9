"""ConfigSchema: the keys of config.json that a family reads where `transformers` does not know its model type; and the
keys that no configuration may have.

Other keys are ignored: training frameworks leave many of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from ramet.errors import CheckpointError
from ramet.quoting import cut, shown

_SCALINGS = ("default", "linear", "yarn")  # whose frequencies do not depend on a sequence's length

# Keys that change what some model type computes, without a parameter of their own, and the values that change nothing.
COUNTING: dict[str, tuple[object, ...]] = {
    "alibi": (None, False),
    "attention_chunk_size": (None,),
    "attention_multiplier": (None,),
    "attn_logit_softcapping": (None,),
    "attn_temperature_tuning": (None, False),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1),
    "final_logit_softcapping": (None,),
    "is_causal": (None, True),
    "lm_head_multiplier": (None, 1),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "logits_soft_cap": (None,),
    "no_rope_layer_interval": (None, 0),
    "no_rope_layers": (None, []),
    "parallel_attn": (None, False),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": (None, 1),
    "rope_interleaved": (None, False),
    "rotary_dim": (None,),
    "rotary_pct": (None, 1),
    "routed_scaling_factor": (None, 1),
    "scale_depth": (None,),
    "scale_emb": (None, 1),
    "sliding_window": (None,),
    "swiglu_limit": (None,),
    "use_bidirectional_attention": (None, False),
    "use_parallel_residual": (None, False),
}
_STORED = ("quantization_config", "compression_config")  # how weights are stored that are no plain numbers


class ConfigSchema(BaseModel):
    """The keys that all of these model types have; a family's own schema adds others. A number of tokens or of rows is
    an integer above 0; ids are from 0 on."""

    model_config = ConfigDict(strict=True, frozen=True)

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    max_position_embeddings: PositiveInt
    rms_norm_eps: PositiveFloat
    hidden_act: str
    rope_theta: PositiveFloat | None = None
    rope_scaling: dict[str, Any] | None = None
    partial_rotary_factor: PositiveFloat | None = None
    rope_parameters: dict[str, Any] | None = None  # where newer releases of transformers save all of these
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    is_causal: bool | None = None  # blocks of masks see themselves, whatever it says
    layer_types: list[str] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    block_size: int | None = Field(None, validation_alias=AliasChoices("block_size", "block_length"))
    mask_token_id: int | None = None
    name_or_path: str | None = Field(None, validation_alias="_name_or_path")  # what it was made from

    def values(self) -> dict[str, Any]:
        """The fields of a `transformers` configuration, with all rotary parameters in one place. Raises ValueError."""
        rope = dict(self.rope_parameters or self.rope_scaling or {})
        rope.setdefault("rope_theta", self.rope_theta)
        if self.partial_rotary_factor is not None:
            rope.setdefault("partial_rotary_factor", self.partial_rotary_factor)
        rope["rope_type"] = rope.get("rope_type", rope.pop("type", "default"))
        if rope["rope_theta"] is None:
            raise ValueError("rope_theta is missing")
        if rope["rope_type"] not in _SCALINGS:
            raise ValueError(f"rope_scaling is of the kind {rope['rope_type']!r}; served are {', '.join(_SCALINGS)}")
        if rope["rope_type"] == "yarn" and "original_max_position_embeddings" not in rope:
            raise ValueError("rope_scaling has no original_max_position_embeddings")
        own = self.model_dump(exclude={"rope_theta", "rope_scaling", "partial_rotary_factor", "is_causal"})
        return own | {"rope_parameters": rope, "name_or_path": self.name_or_path or ""}

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The `values` of what a config.json, named `where`, holds. Raises CheckpointError."""
        check_keys({"use_sliding_window": False, **raw}, where, cls.model_fields.__contains__)
        try:
            return cls.model_validate(dict(raw)).values()
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
            raise CheckpointError(f"{where}: {'; '.join(wrong)}") from error
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}") from error


def check_stored(raw: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for weights that are no plain numbers."""
    for key in (key for key in _STORED if raw.get(key)):
        kind = raw[key].get("quant_method", "another kind of numbers") if isinstance(raw[key], Mapping) else raw[key]
        raise CheckpointError(
            f"{where}: {key} says {cut(str(kind))}: weights that are stored so are not read; take the release in "
            "bfloat16, or a GGUF file"
        )


def check_keys(raw: Mapping[str, Any], where: str, reads: Callable[[str], bool]) -> None:
    """Raise CheckpointError for a key that changes results and that the model type does not read, as `reads` says."""
    check_stored(raw, where)
    if raw.get("modeling_overrides"):
        raise CheckpointError(f"{where}: modeling_overrides changes the model's own layers, which is not read here")
    windowed = raw.get("use_sliding_window") is not False
    for key, neutral in COUNTING.items():
        value = raw.get(key)
        if value not in neutral and not reads(key) and (windowed or key != "sliding_window"):
            raise CheckpointError(
                f"{where}: {key} is {shown(value)}, which {raw.get('model_type')} is not implemented for: the "
                "answers would be another model's"
            )
