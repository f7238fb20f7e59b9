"""The model families, by the model_type of their config.json.

A family is one file. It makes a `Family`, which says how configurations, weights and GGUF files of such models are
read, and `register` makes it known.
"""

from __future__ import annotations

from ramet.families import (
    diffusion_gemma,
    gemma3,
    gemma4,
    llada2_moe,
    llama,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    sdar,
    sdar_moe,
)
from ramet.families.family import Family
from ramet.families.gguf import GgufArchitecture
from ramet.text.pre_tokenizer import PreTokenizer

__all__ = ["FAMILIES", "Family", "architectures", "gguf_pre_tokenizers", "register"]

FAMILIES: dict[str, Family] = {}
_OWN = (diffusion_gemma, gemma3, gemma4, llada2_moe, llama, qwen2, qwen3, qwen3_5, qwen3_5_moe, sdar, sdar_moe)


def register(family: Family) -> None:
    """Make a family known. Raises ValueError where another one has one of its names."""
    taken = {name for each in FAMILIES.values() for name in (*each.model_types, *each.aliases)}
    for name in (*family.model_types, *family.aliases):
        if name in taken:
            raise ValueError(f"another family has the model type {name!r}")
    if family.gguf is not None and family.gguf.name in architectures():
        raise ValueError(f"another family has the GGUF architecture {family.gguf.name!r}")
    FAMILIES.update(dict.fromkeys(family.model_types, family))


def architectures() -> dict[str, GgufArchitecture]:
    """The GGUF architectures of all families, by `general.architecture`."""
    return {family.gguf.name: family.gguf for family in FAMILIES.values() if family.gguf is not None}


def gguf_pre_tokenizers() -> dict[str, PreTokenizer]:
    """Those of all families, by `tokenizer.ggml.pre`: files of one architecture have tokenizers of others."""
    return {name: each for own in architectures().values() for name, each in own.pre_tokenizers.items()}


for module in _OWN:
    register(module.FAMILY)
