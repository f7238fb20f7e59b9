"""Shapes of diffusion models that the benches know by name; the JSON beside this has what their config.json would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.config import make_config
from ramet.denoise.block_config import BlockConfig
from ramet.families import FAMILIES

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BLOCK = 32
_SHAPES: dict[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
BLOCK_SHAPES = _SHAPES["blocks"]  # SDAR's and LLaDA2.0's
# DiffusionGemma's, with a tower for pictures that nobody uses, as small as it gets. All have layers of both kinds, five
# sliding ones and a full one by turns, and keys that are values in full layers.
CANVAS_SHAPES = _SHAPES["canvases"]


def config_of(name: str) -> PretrainedConfig:
    return make_config({**BLOCK_SHAPES, **CANVAS_SHAPES}[name], FAMILIES, name)


def names_of(name: str) -> tuple[str, ...]:
    """Of a checkpoint's parameters those that a plan looks for; all experts of a layer are in one."""
    if name in CANVAS_SHAPES:
        return ("model.decoder.embed_tokens.weight",)
    raw = BLOCK_SHAPES[name]
    embedding = "word_embeddings" if raw["model_type"] == "llada2_moe" else "embed_tokens"
    layers = range(raw["first_k_dense_replace"], raw["num_hidden_layers"]) if "num_experts" in raw else ()
    experts = (f"model.layers.{layer}.mlp.experts.gate_up_proj" for layer in layers)
    return f"model.{embedding}.weight", "lm_head.weight", *experts


def block_config_of(name: str, block: int = BLOCK) -> BlockConfig:
    """As an engine finds it in a checkpoint of that shape."""
    config = config_of(name)
    defaults = FAMILIES[config.model_type].blocks
    assert defaults is not None
    return BlockConfig.of(name, config, {}, defaults, control={}, stop_ids=(config.eos_token_id,), size=block)
