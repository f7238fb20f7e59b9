"""Llama and what shares its layers (SmolLM2): Touvron et al. 2023; transformers' LlamaForCausalLM."""

from __future__ import annotations

from functools import partial

from ramet.families.dense import dense_plan, dense_shape
from ramet.families.family import Family
from ramet.families.gguf import LAYER_TENSORS, GgufArchitecture
from ramet.text.pre_tokenizer import REST, PreTokenizer

_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
_LLAMA3 = PreTokenizer(split=_SPLIT, whole_words=True, adds_bos=True)
_PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "starcoder": PreTokenizer(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}
GGUF = GgufArchitecture("llama", "llama", LAYER_TENSORS, pre_tokenizers=_PRE_TOKENIZERS, interleaved=True)
FAMILY = Family(("llama",), partial(dense_shape, qk_norm=False), dense_plan, gguf=GGUF)
