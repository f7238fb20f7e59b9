"""Shapes of DiffusionGemma that `ramet bench reads` knows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing transformers takes seconds
    from transformers import DiffusionGemmaConfig

# Every shape has layers of both kinds, five sliding ones and a full one by turns, 8 of its experts chosen, keys that
# are values in full layers.
_COMMON = {
    "vocab_size": 262144, "sliding_window": 1024, "max_position_embeddings": 262144,
    "use_bidirectional_attention": "vision",
}  # fmt: skip
TEXTS: dict[str, dict[str, Any]] = {
    "26b-a4b": {
        "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
    },
    "100m": {
        "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 12, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "global_head_dim": 128, "num_global_key_value_heads": 1,
        "num_experts": 40, "top_k_experts": 8, "moe_intermediate_size": 64,
    },
    "tiny": {
        "vocab_size": 4096, "hidden_size": 96, "intermediate_size": 80, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64,
        "num_global_key_value_heads": 1, "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 32,
        "sliding_window": 64, "max_position_embeddings": 8192,
    },
}  # fmt: skip
_VISION = {  # a tower that nobody uses, as small as it gets
    "model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64,
}  # fmt: skip


def config_of(shape: str, **changed: Any) -> DiffusionGemmaConfig:
    """transformers' configuration of a named shape, or of one that is `changed`."""
    from transformers import DiffusionGemmaConfig

    return DiffusionGemmaConfig(
        text_config=_COMMON | TEXTS[shape] | changed, vision_config=dict(_VISION), canvas_length=256
    )
