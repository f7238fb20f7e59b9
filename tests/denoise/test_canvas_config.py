"""What a checkpoint says of how canvases are denoised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from oracles import diffusion_gemma as oracle
from transformers.models.diffusion_gemma.generation_diffusion_gemma import DiffusionGemmaGenerationConfig

from ramet.denoise.canvas_config import CanvasConfig
from ramet.errors import CheckpointError

PUBLISHED = {  # of the 26B
    "max_denoising_steps": 48, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1, "confidence_threshold": 0.005,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1}, "max_new_tokens": 256,
    "eos_token_id": [1, 106, 50], "pad_token_id": 0, "bos_token_id": 2,
}  # fmt: skip


def test_the_published_checkpoint() -> None:
    assert CanvasConfig.of(oracle.config("plain"), PUBLISHED) == CanvasConfig(
        vocab_size=oracle.VOCAB_SIZE, canvas_length=16, max_steps=48, t_min=0.4, t_max=0.8, entropy_bound=0.1,
        stability_threshold=1, confidence_threshold=0.005, max_new_tokens=256, stop_ids=frozenset({1, 50, 106}), pad=0,
    )  # fmt: skip


def test_what_is_left_open_is_as_transformers_has_it() -> None:
    found = CanvasConfig.of(oracle.config("plain"), {"t_min": None, "sampler_config": None})
    defaults = DiffusionGemmaGenerationConfig._get_default_generation_params()
    assert found.entropy_bound == defaults.pop("sampler_config").entropy_bound
    assert found.max_steps == defaults.pop("max_denoising_steps")
    assert {name: getattr(found, name) for name in defaults} == defaults


def test_ends_are_those_of_replies_before_those_of_the_model() -> None:
    config = oracle.config("plain", eos_token_id=7, pad_token_id=3)
    assert CanvasConfig.of(config, {}).stop_ids == {7}
    assert CanvasConfig.of(config, {}).pad == 3
    assert CanvasConfig.of(config, {"eos_token_id": 9, "pad_token_id": 4}).stop_ids == {9}
    assert CanvasConfig.of(config, {"eos_token_id": [], "pad_token_id": 0}) == replace(
        CanvasConfig.of(config, {}), stop_ids=frozenset(), pad=0
    )


@pytest.mark.parametrize(("told", "message"), [
    ({"max_denoising_steps": 0}, "max_steps is 0"),
    ({"max_denoising_steps": 1.5}, "max_denoising_steps is 1.5"),
    ({"max_new_tokens": -1}, "max_new_tokens is -1"),
    ({"stability_threshold": -1}, "stability_threshold is -1"),
    ({"t_min": 0.8}, "t_min is 0.8 and t_max 0.8"),
    ({"t_min": -0.1}, "t_min is -0.1"),
    ({"confidence_threshold": 0.0}, "confidence_threshold is 0.0"),
    ({"t_max": "hot"}, "t_max is 'hot'; it must be a finite number"),
    ({"sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0}}, "entropy_bound is 0"),
    ({"sampler_config": {"_cls_name": "AncestralSamplerConfig"}}, "sampler_config is of 'AncestralSamplerConfig'"),
])  # fmt: skip
def test_what_makes_no_sense(told: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: .*{message}"):
        CanvasConfig.of(oracle.config("plain"), PUBLISHED | told)
