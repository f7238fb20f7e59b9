"""The model families, by the model_type of their config.json."""

from __future__ import annotations

from ramet.families import (
    diffusion_gemma,
    gemma3,
    gemma4,
    llada2_moe,
    llama,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    sdar,
    sdar_moe,
)
from ramet.families.family import Family

FAMILIES: dict[str, Family] = {
    "diffusion_gemma": diffusion_gemma.FAMILY,
    "gemma3": gemma3.FAMILY,
    "gemma3_text": gemma3.FAMILY,
    "gemma4": gemma4.FAMILY,
    "gemma4_text": gemma4.FAMILY,
    "gemma4_unified": gemma4.FAMILY,
    "gemma4_unified_text": gemma4.FAMILY,
    "llada2_moe": llada2_moe.FAMILY,
    "llama": llama.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_5": qwen3_5.FAMILY,
    "qwen3_5_moe": qwen3_5_moe.FAMILY,
    "qwen3_5_moe_text": qwen3_5_moe.FAMILY,
    "qwen3_5_text": qwen3_5.FAMILY,
    "sdar": sdar.FAMILY,
    "sdar_moe": sdar_moe.FAMILY,
}
