"""Crafted checkpoints of models that write in canvases or blocks of masks: their sizes, ids and settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attacks.crafted import edited, load, refused
from oracles import block_models
from oracles import diffusion_gemma as diffusion_gemma_oracle

HUGE = 10**12


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What is imported and compiled once is none of an attack's."""
    for source in (block_models.saved("sdar")[0], block_models.saved("llada2_moe")[0]):
        load(source)
    load(diffusion_gemma_oracle.saved("plain"))


@pytest.mark.parametrize(("family", "key", "value"), [
    *((family, key, value) for family in ("sdar", "llada2_moe") for key, value in (
        ("num_hidden_layers", HUGE), ("num_hidden_layers", 1_000_000), ("hidden_size", HUGE), ("head_dim", "x"),
        ("max_position_embeddings", 2**40), ("vocab_size", HUGE), ("mask_token_id", HUGE), ("mask_token_id", "x"),
        ("rope_theta", 0), ("rope_scaling", {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}),
        ("block_size", "x"), ("block_size", HUGE), ("layer_types", ["full_attention"] * 1000),
    )),
    ("llada2_moe", "num_experts", 10**9), ("llada2_moe", "n_group", HUGE), ("llada2_moe", "num_shared_experts", HUGE),
    ("llada2_moe", "first_k_dense_replace", -1), ("llada2_moe", "partial_rotary_factor", 1e9),
    ("llada2_moe", "rotary_dim", HUGE), ("sdar_moe", "num_experts", 1000), ("sdar_moe", "num_experts_per_tok", 0),
])  # fmt: skip
def test_blocks_of_masks(family: str, key: str, value: object, tmp_path: Path) -> None:
    refused(
        edited(tmp_path / "c", block_models.saved(family)[0], **{key: value}), key.replace("rope_scaling", "factor")
    )


@pytest.mark.parametrize("mask", [-1, 5000])
def test_masks_outside_the_vocabulary(mask: int, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", block_models.saved("sdar")[0], mask_token_id=mask), "mask")


def test_blocks_of_another_kind(tmp_path: Path) -> None:
    source = block_models.saved("llada2_moe")[0]
    for value in ("32", HUGE, True, -4):
        refused(
            edited(tmp_path / str(value), source, "generation_config.json", block_length=value),
            "generation_config.json", "block_length",
        )  # fmt: skip


@pytest.mark.parametrize("value", [HUGE, 0, -1, "x", True, [16], 2.5])
def test_canvases(value: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", diffusion_gemma_oracle.saved("plain"), canvas_length=value), "canvas_length")


@pytest.mark.parametrize(("key", "value"), [
    ("max_denoising_steps", HUGE), ("max_denoising_steps", True), ("t_max", "hot"), ("t_max", 10**300),
    ("stability_threshold", -1), ("confidence_threshold", []), ("max_new_tokens", HUGE), ("eos_token_id", 5000),
    ("eos_token_id", "x"), ("pad_token_id", 5000), ("pad_token_id", [0]), ("sampler_config", []),
    ("sampler_config", {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": "x"}),
])  # fmt: skip
def test_settings_of_canvases(key: str, value: object, tmp_path: Path) -> None:
    directory = edited(tmp_path / "c", diffusion_gemma_oracle.saved("plain"), "generation_config.json", **{key: value})
    refused(directory, str(5000) if value == 5000 else key)


def test_layers_of_the_text_model(tmp_path: Path) -> None:
    source = diffusion_gemma_oracle.saved("plain")
    raw = json.loads((source / "config.json").read_text())
    for number, change in enumerate(({"num_hidden_layers": HUGE}, {"num_experts": 10**9}, {"top_k_experts": "x"})):
        text = {"text_config": raw["text_config"] | change}
        refused(edited(tmp_path / str(number), source, **text), *change)
