"""Shapes of models that fill in blocks of masks, which `ramet bench elastic` knows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramet.config import make_config
from ramet.denoise.block_config import BlockConfig
from ramet.families import FAMILIES

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BLOCK = 32
_COMMON: dict[str, Any] = {
    "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False, "block_size": BLOCK,
}  # fmt: skip
_SDAR = _COMMON | {
    "model_type": "sdar", "vocab_size": 151936, "rope_theta": 1e6, "bos_token_id": 151643, "eos_token_id": 151643,
    "mask_token_id": 151669, "num_key_value_heads": 8,
}  # fmt: skip
_LLADA = _COMMON | {
    "model_type": "llada2_moe", "vocab_size": 157184, "rope_theta": 6e5, "partial_rotary_factor": 0.5,
    "eos_token_id": 156892, "pad_token_id": 156892, "mask_token_id": 156895, "first_k_dense_replace": 1,
    "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "num_experts": 256, "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5, "score_function": "sigmoid", "norm_topk_prob": True,
    "moe_router_enable_expert_bias": True, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False,
    "norm_head": False,
}  # fmt: skip
RAW: dict[str, dict[str, Any]] = {  # what config.json holds
    "sdar-8b": _SDAR | {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    },
    "sdar-1.7b": _SDAR | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    },
    "llada2-mini": _LLADA | {
        "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20, "num_attention_heads": 16,
        "num_key_value_heads": 4, "moe_intermediate_size": 512,
    },
    "sdar-tiny": _SDAR | {
        "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "bos_token_id": 1, "eos_token_id": 1,
        "mask_token_id": 2047,
    },
    "llada2-tiny": _LLADA | {
        "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 16,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "eos_token_id": 1, "pad_token_id": 1,
        "mask_token_id": 2047,
    },
}  # fmt: skip


def config_of(shape: str) -> PretrainedConfig:
    return make_config(RAW[shape], None, shape)


def names_of(shape: str) -> tuple[str, ...]:
    """Of a checkpoint's parameters those that a plan asks for; all experts of a layer are in one."""
    raw = RAW[shape]
    embedding = "word_embeddings" if raw["model_type"] == "llada2_moe" else "embed_tokens"
    layers = range(raw["first_k_dense_replace"], raw["num_hidden_layers"]) if "num_experts" in raw else ()
    experts = (f"model.layers.{layer}.mlp.experts.gate_up_proj" for layer in layers)
    return f"model.{embedding}.weight", "lm_head.weight", *experts


def masking_of(shape: str, block: int = BLOCK) -> BlockConfig:
    """As an engine finds it in a checkpoint of that shape."""
    config = config_of(shape)
    defaults = FAMILIES[config.model_type].blocks
    assert defaults is not None
    return BlockConfig.of(shape, config, {}, defaults, control={}, stop_ids=(config.eos_token_id,), size=block)
