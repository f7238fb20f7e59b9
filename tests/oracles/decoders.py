"""Tiny random models in float32: oracles, mostly transformers' own, and ours from the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from oracles.block_models import RAW, BlockModel
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
)

from ramet.cache.kv import KeyValue
from ramet.cache.store import Store
from ramet.config import rope_frequencies
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.layers.shape import ModelShape
from ramet.layers.storage import allocate
from ramet.ops import Ops, OpShape, choose

VOCAB_SIZE = 199
CPU = torch.device("cpu")

_COMMON = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
_GEMMA4 = _COMMON | {
    "tie_word_embeddings": True, "global_head_dim": 32, "sliding_window": 11, "vocab_size_per_layer_input": VOCAB_SIZE,
}  # fmt: skip
_QWEN3_5 = _COMMON | {
    "num_hidden_layers": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24,
    "num_hidden_layers": 4,
}  # fmt: skip
CONFIGS = {  # by a name of ours: a family may have several
    "gemma3": Gemma3TextConfig(
        **_COMMON | {"tie_word_embeddings": True}, sliding_window=11, query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    ),
    "gemma4": Gemma4TextConfig(
        **_GEMMA4 | {"num_hidden_layers": 5},
        layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"],
        num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=16,
    ),
    "gemma4-moe": Gemma4TextConfig(
        **_GEMMA4, layer_types=["sliding_attention", "full_attention", "full_attention"], attention_k_eq_v=True,
        num_global_key_value_heads=1, hidden_size_per_layer_input=0, final_logit_softcapping=2.0,
        enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=40,
    ),
    **{name: BlockModel.random(name, VOCAB_SIZE).config for name in RAW},
    "llama": LlamaConfig(**_COMMON, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(
        **_COMMON | {"tie_word_embeddings": True}, use_sliding_window=True, sliding_window=11, max_window_layers=1
    ),
    "qwen2-untied": Qwen2Config(**_COMMON | {"num_hidden_layers": 2}),
    "qwen3": Qwen3Config(**_COMMON),
    "qwen3_5": Qwen3_5TextConfig(**_QWEN3_5),
    "qwen3_5-delta-last": Qwen3_5TextConfig(
        **_QWEN3_5 | {"num_hidden_layers": 3, "linear_num_value_heads": 2},
        layer_types=["linear_attention", "full_attention", "linear_attention"], attention_bias=True,
    ),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**_QWEN3_5 | _EXPERTS),
}  # fmt: skip


@cache
def oracle(name: str) -> PreTrainedModel | BlockModel:
    """transformers' model, or one of oracles/block_models.py: with weights large enough that its probabilities are far
    from uniform."""
    if name in RAW:
        return BlockModel.random(name, VOCAB_SIZE)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).float().eval()
    scalars = [(place, weight) for place, weight in model.named_buffers() if place.endswith("layer_scalar")]
    for place, weight in [*model.named_parameters(), *scalars]:
        positive = "norm" in place or "scal" in place
        weight.data = torch.rand_like(weight) + 0.5 if positive else torch.randn_like(weight) * 0.15
    return model


@cache
def decoder(name: str) -> Decoder:
    """Ours, of the oracle's weights."""
    return build(name, choose(CPU))


def build(name: str, choice: Callable[[OpShape], Ops], device: torch.device = CPU) -> Decoder:
    """The same on other operations."""
    return made_of(oracle(name), choice, device)


def made_of(
    model: PreTrainedModel | BlockModel, choice: Callable[[OpShape], Ops], device: torch.device = CPU
) -> Decoder:
    """Ours, of the weights of such a model."""
    state, config = model.state_dict(), model.config.get_text_config()
    family = FAMILIES[model.config.model_type]
    shape = family.shape(config)
    weights = {}
    for ours, weight in family.plan(shape, state.keys()).items():
        made = torch.cat([state[part] for part in weight.parts])
        assert made.shape == weight.shape, ours
        weights[ours] = (made if weight.transform is None else weight.transform(made)).to(device)
    rotaries = [rope_frequencies(config, kind) for kind in shape.rotaries]
    return Decoder(shape, weights, rotaries, choice)


def poisoned_store(name: str, n_pages: int, page_size: int, n_states: int = 0, device: torch.device = CPU) -> Store:
    """Pages and states full of NaN: what is read before it is written shows."""
    return poisoned(decoder(name).shape, n_pages, page_size, n_states, device)


def poisoned(shape: ModelShape, n_pages: int, page_size: int, n_states: int = 0, device: torch.device = CPU) -> Store:
    """The same for any shape."""
    store = allocate(shape, n_pages, page_size, n_states, torch.float32, device)
    for layer in store.layers:
        if layer is not None:
            for tensor in (layer.keys, layer.values) if isinstance(layer, KeyValue) else (layer.window, layer.state):
                tensor.fill_(torch.nan)
    return store
