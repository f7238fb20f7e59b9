"""Keys: what config.json says of model types that `transformers` does not know, typed and loud.

Keys that are not named here are ignored: training frameworks leave many of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from ramet.errors import CheckpointError

_SCALINGS = ("default", "linear", "yarn")  # whose frequencies do not depend on a sequence's length


class Keys(BaseModel):
    """Those that all have. A number of tokens or of rows is an integer above 0; ids are from 0 on."""

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
    rope_parameters: dict[str, Any] | None = None  # where newer releases of transformers save both of these
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    block_size: int | None = Field(None, validation_alias=AliasChoices("block_size", "block_length"))
    mask_token_id: int | None = None

    def values(self) -> dict[str, Any]:
        """What a configuration of `transformers` is made of; the parameters of its rotary embedding in one place.
        Raises ValueError."""
        rope = dict(self.rope_parameters or self.rope_scaling or {})
        rope.setdefault("rope_theta", self.rope_theta)
        rope["rope_type"] = rope.get("rope_type", rope.pop("type", "default"))
        if rope["rope_theta"] is None:
            raise ValueError("rope_theta is missing")
        if rope["rope_type"] not in _SCALINGS:
            raise ValueError(f"rope_scaling is of the kind {rope['rope_type']!r}; served are {', '.join(_SCALINGS)}")
        if rope["rope_type"] == "yarn" and "original_max_position_embeddings" not in rope:
            raise ValueError("rope_scaling has no original_max_position_embeddings")
        return self.model_dump(exclude={"rope_theta", "rope_scaling"}) | {"rope_parameters": rope}


class SDARKeys(Keys):
    intermediate_size: PositiveInt
    attention_bias: bool = False


class ExpertsKeys(Keys):
    """Those of all models whose rows choose experts."""

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    norm_topk_prob: bool


class SDARMoEKeys(ExpertsKeys):
    attention_bias: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


class LLaDA2Keys(ExpertsKeys):
    """Its rotary embedding turns a part of each head, said in one of two ways."""

    intermediate_size: PositiveInt
    first_k_dense_replace: NonNegativeInt
    num_shared_experts: NonNegativeInt
    n_group: PositiveInt
    topk_group: PositiveInt
    routed_scaling_factor: PositiveFloat
    score_function: str
    moe_router_enable_expert_bias: bool = True
    expert_capacity: Any = None
    use_qk_norm: bool = True
    use_qkv_bias: bool = False
    use_bias: bool = False
    norm_head: bool = False
    partial_rotary_factor: PositiveFloat | None = None
    rotary_dim: PositiveInt | None = None

    def values(self) -> dict[str, Any]:
        values = super().values()
        rope, told = values["rope_parameters"], values.pop("partial_rotary_factor")
        parts = [rope.get("partial_rotary_factor"), told, self.rotary_dim and self.rotary_dim / self.head_dim]
        found = {part for part in parts if part is not None}
        if len(found) != 1 or not 0 < min(found) <= 1:
            raise ValueError("partial_rotary_factor or rotary_dim must say which part of each head is turned")
        rope["partial_rotary_factor"] = found.pop()
        return values


KEYS: dict[str, type[Keys]] = {"llada2_moe": LLaDA2Keys, "sdar": SDARKeys, "sdar_moe": SDARMoEKeys}


def read_keys(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What `raw`, whose model_type is one of KEYS, holds, by the names of `transformers`. Raises CheckpointError."""
    try:
        return KEYS[raw["model_type"]].model_validate(dict(raw)).values()
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        raise CheckpointError(f"{where}: {'; '.join(wrong)}") from error
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error
