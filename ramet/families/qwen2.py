"""Qwen2 and Qwen2.5, Coder among them: Llama's layers with biases on queries, keys and values; transformers'
Qwen2ForCausalLM."""

from __future__ import annotations

from typing import Any

from ramet.families.configuration import require
from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import Family
from ramet.families.gguf import LAYER_TENSORS, GgufArchitecture
from ramet.families.plans import QKV
from ramet.layers.shape import ModelShape
from ramet.text.pre_tokenizer import REST, PreTokenizer

_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
_QWEN2 = PreTokenizer(split=_SPLIT, nfc=True)
GGUF = GgufArchitecture("qwen2", "qwen2", LAYER_TENSORS, pre_tokenizers={"qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2})


def _shape(config: Any) -> ModelShape:
    require(config, "dual_chunk_attention_config", None)  # of the releases for a million tokens
    return dense_shape(config, qk_norm=False, biased=QKV, windows=True)


FAMILY = Family(("qwen2",), _shape, dense_plan, gguf=GGUF)
