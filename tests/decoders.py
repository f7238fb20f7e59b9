"""Tiny random models in float32: transformers' own, and ours from the same weights."""

from __future__ import annotations

from functools import cache

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from ramet.cache.kv import KeyValue
from ramet.cache.store import Store
from ramet.config import rope_frequencies
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.layers.storage import allocate
from ramet.ops import choose

VOCAB_SIZE = 199
CPU = torch.device("cpu")

_COMMON = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
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
    state, family, config = oracle(model_type).state_dict(), FAMILIES[model_type], CONFIGS[model_type]
    shape = family.shape(config)
    weights = {}
    for ours, weight in family.plan(shape, state.keys()).items():
        made = torch.cat([state[name] for name in weight.parts])
        assert made.shape == weight.shape, ours
        weights[ours] = made if weight.transform is None else weight.transform(made)
    rotaries = [rope_frequencies(config, kind) for kind in shape.rotaries]
    return Decoder(shape, weights, rotaries, choose(CPU))


def poisoned_store(model_type: str, n_pages: int, page_size: int, n_states: int = 0) -> Store:
    """Pages and states full of NaN: what is read before it is written shows."""
    store = allocate(decoder(model_type).shape, n_pages, page_size, n_states, torch.float32, CPU)
    for layer in store.layers:
        if layer is not None:
            for tensor in (layer.keys, layer.values) if isinstance(layer, KeyValue) else (layer.window, layer.state):
                tensor.fill_(torch.nan)
    return store
