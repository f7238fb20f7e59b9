"""Blocks of masks: which size, which mask, which ids end a reply, and where that was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from oracles.block_models import RAW

from ramet.config import make_config
from ramet.denoise.block_config import BlockConfig
from ramet.errors import CheckpointError, InvalidRequest
from ramet.families import FAMILIES

CONTROL = {"<|endoftext|>": 151643, "<|im_end|>": 151645, "<|MASK|>": 151669}


def masking(
    name: str = "JetLM/SDAR-8B-Chat", family: str = "sdar", size: int | None = None, *,
    generation: dict[str, Any] | None = None, stop_ids: tuple[int, ...] = (151643,),
    control: dict[str, int] = CONTROL, paths: Sequence[str] = (), **config: Any,
) -> BlockConfig:  # fmt: skip
    defaults = FAMILIES[family].blocks
    assert defaults is not None
    made = make_config(RAW[family] | {"vocab_size": 157184, "eos_token_id": 151643} | config, FAMILIES, "config.json")
    return BlockConfig.of(
        name, made, generation or {}, defaults, control=control, stop_ids=stop_ids, size=size, paths=paths
    )


@pytest.mark.parametrize(("name", "family", "size", "config", "wanted"), [
    ("JetLM/SDAR-8B-Chat", "sdar", None, {}, (4, "the release of that name")),
    ("JetLM/SDAR-8B-Chat-b32", "sdar", None, {}, (32, "the model's name")),
    ("JetLM/SDAR-30B-A3B-Chat-b8", "sdar_moe", None, {}, (8, "the model's name")),
    ("SDAR-b8-Chat", "sdar", None, {}, (8, "the model's name")),
    ("acme/wren-1b-B32", "sdar", None, {}, (32, "the model's name")),
    ("SDAR-8B-Chat-b32", "sdar", None, {"block_size": 16}, (16, "config.json")),
    ("SDAR-8B-Chat-b32", "sdar", None, {"block_length": 16}, (16, "config.json")),
    ("SDAR-8B-Chat-b32", "sdar", 64, {"block_size": 16}, (64, "the option")),
    ("inclusionAI/LLaDA2.0-mini", "llada2_moe", None, {}, (32, "llada2_moe's default")),
    ("inclusionAI/LLaDA2.0-flash-preview", "llada2_moe", None, {}, (32, "llada2_moe's default")),
])  # fmt: skip
def test_the_size_of_a_block(
    name: str, family: str, size: int | None, config: dict[str, Any], wanted: tuple[int, str]
) -> None:
    found = masking(name, family, size, **config)
    assert (found.size, found.found["size"]) == wanted
    assert found.describe()["block_size"] == f"{wanted[0]} ({wanted[1]})"


def test_the_mask() -> None:
    assert masking().describe()["mask_token_id"] == "151669 (sdar's own)"
    assert masking("LLaDA2.0-mini", "llada2_moe").mask == 156895
    assert masking(mask_token_id=7).describe()["mask_token_id"] == "7 (config.json)"


def test_what_ends_a_reply() -> None:
    """Both of SDAR's, though its configuration names one; never the mask."""
    assert masking().stop_ids == {151643, 151645}
    assert masking(stop_ids=(151643, 151669)).stop_ids == {151643, 151645}
    llada = {"<|endoftext|>": 156892, "<|role_end|>": 156900}
    assert masking("L", "llada2_moe", control=llada, stop_ids=(156892,)).stop_ids == {156892, 156900}
    with pytest.raises(CheckpointError, match="no id ends a reply"):
        masking(control={}, stop_ids=())


@pytest.mark.parametrize(("config", "message"), [
    ({"vocab_size": 1000}, "the mask's id is 151669 .*ids run from 0 to 999; set mask_token_id"),
    ({"mask_token_id": -1}, "the mask's id is -1"),
    ({"block_size": 1}, r"a block of 1 rows; there are from 2 to 2048 \(config.json\)"),
    ({"block_size": 0}, "a block of 0 rows"),
])  # fmt: skip
def test_configurations_that_do_not_hold(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        masking(**config)


@pytest.mark.parametrize("size", [1, 2049])
def test_sizes_that_are_not_given(size: int) -> None:
    with pytest.raises(InvalidRequest, match="there are from 2 to 2048") as caught:
        masking(size=size)
    assert caught.value.field == "block_size"
    with pytest.raises(CheckpointError, match="a block of 4096 rows"):
        masking(block_size=4096)


@pytest.mark.parametrize(("name", "paths", "config", "wanted"), [
    ("model", ["/m/wren-1b-b32/hf_ckpt"], {}, (32, "its path")),
    ("model", ["/m/model", "/m/models--acme--Wren-1b-B8/snapshots/0fb4e1"], {}, (8, "its path")),
    ("model", ["/m/model"], {"_name_or_path": "acme/wren-1b-b16"}, (16, "config.json's _name_or_path")),
    ("wren-b8", ["/m/model-b8"], {"_name_or_path": "wren-b8"}, (8, "the model's name")),
])  # fmt: skip
def test_what_tells_the_size(name: str, paths: list[str], config: dict[str, Any], wanted: tuple[int, str]) -> None:
    found = masking(name, paths=paths, **config)
    assert (found.size, found.found["size"]) == wanted


@pytest.mark.parametrize(("name", "paths", "config", "message"), [
    ("hf_ckpt", ["/m/hf_ckpt"], {}, "say how many rows its blocks"),
    ("SDAR-8B-Chat", ["/m/SDAR-8B-Chat"], {}, "say how many rows its blocks"),  # anybody's, by the last of its path
    ("wren-1b32", ["/m/b32/wren-b1"], {}, "say how many rows its blocks"),
    ("wren-b8", ["/m/wren-b32"], {}, "its names speak of blocks of 8 and of 32 rows"),
    ("wren-b8", ["/m/wren-b8"], {"_name_or_path": "wren-b4"}, "its names speak of blocks of 4 and of 8 rows"),
])  # fmt: skip
def test_a_size_that_is_not_told_is_asked_for(
    name: str, paths: list[str], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"{message}.*give --block-size"):
        masking(name, paths=paths, **config)
    assert masking(name, paths=paths, size=16, **config).size == 16


def test_a_size_in_generation_config() -> None:
    assert masking("m", generation={"block_length": 8}).describe()["block_size"] == "8 (generation_config.json)"


@pytest.mark.parametrize("name", ["inclusionAI/LLaDA2.1-mini", "LLaDA2.2-flash", "llada-2.1-mini-bf16"])
def test_models_that_edit(name: str) -> None:
    with pytest.raises(CheckpointError, match="models that edit what they have written are not served"):
        masking(name, "llada2_moe")
    with pytest.raises(CheckpointError, match=r"generation_config.json has edit_threshold"):
        masking("mini", "llada2_moe", generation={"edit_threshold": 0.5})


def test_masks_to_the_end_of_a_block() -> None:
    assert [masking(size=4).n_masks(n) for n in range(6)] == [4, 3, 2, 1, 4, 3]
