"""SDAR, dense: Qwen3's layers and names, for blocks of masks; JetLM's SDARForCausalLM, Cheng et al. 2025."""

from __future__ import annotations

from typing import Any

from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import BlockDefaults, Family, require
from ramet.layers.shape import Shape

BLOCKS = BlockDefaults(size=4, mask=151669, stops=("<|endoftext|>", "<|im_end|>"))


def _shape(config: Any) -> Shape:
    require(config, "use_sliding_window", False)
    return dense_shape(config, qk_norm=True)


FAMILY = Family(shape=_shape, plan=dense_plan, blocks=BLOCKS)
