"""SDAR, dense: Qwen3's layers and names, for blocks of masks; JetLM's SDARForCausalLM, Cheng et al. 2025."""

from __future__ import annotations

from typing import Any

from pydantic import PositiveInt

from ramet.config_schema import ConfigSchema
from ramet.families.configuration import require
from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import BlockDefaults, Family
from ramet.layers.shape import ModelShape

# Trained for blocks of 4 to 64, a number at the end of a release's name; releases without one have 4.
_PLAIN = {f"JetLM/SDAR-{size}": 4 for size in ("1.7B-Chat", "4B-Chat", "8B-Chat", "30B-A3B-Chat", "30B-A3B-Sci")}
BLOCKS = BlockDefaults(size=None, mask=151669, stops=("<|endoftext|>", "<|im_end|>"), plain=_PLAIN)


class SDARSchema(ConfigSchema):
    intermediate_size: PositiveInt
    attention_bias: bool = False


def _shape(config: Any) -> ModelShape:
    require(config, "use_sliding_window", False)
    return dense_shape(config, qk_norm=True)


FAMILY = Family(("sdar",), _shape, dense_plan, schema=SDARSchema, blocks=BLOCKS)
