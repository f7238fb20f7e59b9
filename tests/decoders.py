"""Tiny random models in float32: transformers' own, and ours from the same weights."""

from __future__ import annotations

from functools import cache

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from ramet.cache.kv import PagedKeyValues
from ramet.config import rope_frequencies
from ramet.families import FAMILIES
from ramet.families.family import head_weight
from ramet.layers.decoder import Decoder
from ramet.ops import choose

VOCAB_SIZE = 199
N_LAYERS, N_KV_HEADS, HEAD_DIM = 3, 2, 16
CPU = torch.device("cpu")

_COMMON = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 6, "num_key_value_heads": N_KV_HEADS, "head_dim": HEAD_DIM,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**_COMMON, attention_bias=True, mlp_bias=True),
    "qwen3": Qwen3Config(**_COMMON),
}


@cache
def oracle(model_type: str) -> PreTrainedModel:
    """transformers' model with weights large enough that its probabilities are far from uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[model_type]).float().eval()
    for name, weight in model.named_parameters():
        weight.data = torch.rand_like(weight) + 0.5 if "norm" in name else torch.randn_like(weight) * 0.15
    return model


@cache
def decoder(model_type: str) -> Decoder:
    """Ours, of the oracle's weights."""
    state = oracle(model_type).state_dict()
    family = FAMILIES[model_type]
    shape = family.shape(CONFIGS[model_type])
    plan = {**family.plan(shape), "head": head_weight(shape)}
    weights = {ours: torch.cat([state[name] for name in weight.parts]) for ours, weight in plan.items()}
    return Decoder(shape, weights, *rope_frequencies(CONFIGS[model_type]), choose(CPU))


def poisoned_cache(n_pages: int, page_size: int) -> PagedKeyValues:
    """Pages full of NaN: what is read before it is written shows."""
    cache = PagedKeyValues.allocate(N_LAYERS, n_pages, page_size, N_KV_HEADS, HEAD_DIM, torch.float32, CPU)
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    return cache
