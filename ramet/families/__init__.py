"""The model families, by transformers' model_type."""

from __future__ import annotations

from ramet.families import llama, qwen3
from ramet.families.family import Family

FAMILIES: dict[str, Family] = {"llama": llama.FAMILY, "qwen3": qwen3.FAMILY}
