"""Which files of a directory hold the model: the index decides, and what it passes over is left out, aloud."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import tiny
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ramet.errors import CheckpointError
from ramet.weights import open_checkpoint
from tests.weights.test_checkpoint import copied
from tests.weights.test_loading import logprobs

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SHARD, OVERLAY = "model-00001-of-00001.safetensors", "model-overlay-00001.safetensors"
QUERY = "model.layers.0.self_attn.q_proj.weight"
Tensors = dict[str, torch.Tensor]


def laid(target: Path, files: dict[str, Tensors], index: dict[str, str] | None = None) -> Path:
    """The tiny Llama with other files of weights."""
    directory = copied(tiny.llama(), target)
    (directory / SINGLE).unlink()
    for name, tensors in files.items():
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / name, {"format": "pt"})
    if index is not None:
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return directory


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return load_file(tiny.llama() / SINGLE)


@pytest.fixture(scope="module")
def right() -> np.ndarray:  # type: ignore[type-arg]
    return logprobs(tiny.llama())


def halves(weights: Tensors) -> dict[str, Tensors]:
    names = sorted(weights)
    first, second = names[: len(names) // 2], names[len(names) // 2 :]
    return {
        f"model-0000{n}-of-00002.safetensors": {name: weights[name] for name in part}
        for n, part in ((1, first), (2, second))
    }


def placed(files: dict[str, Tensors]) -> dict[str, str]:
    return {name: file for file, tensors in files.items() for name in tensors}


def test_an_overlay(tmp_path: Path, weights: Tensors, right: object) -> None:
    """What the index places elsewhere is stale in the shard, as with transformers."""
    stale = weights | {QUERY: torch.zeros_like(weights[QUERY])}
    index = dict.fromkeys(weights, SHARD) | {QUERY: OVERLAY}
    directory = laid(tmp_path / "c", {SHARD: stale, OVERLAY: {QUERY: weights[QUERY]}}, index)
    with pytest.warns(UserWarning, match=rf"passes over {QUERY} of {SHARD}: left out"):
        np.testing.assert_array_equal(logprobs(directory), right)
    theirs = AutoModelForCausalLM.from_pretrained(directory).state_dict()[QUERY]
    torch.testing.assert_close(theirs, weights[QUERY], rtol=0, atol=0)


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path, weights: Tensors, right: object) -> None:
    more = weights | {"mtp.fc.weight": torch.ones(2, 2)}
    directory = laid(tmp_path / "c", {SHARD: more}, dict.fromkeys(weights, SHARD))
    with pytest.warns(UserWarning, match=rf"passes over mtp\.fc\.weight of {SHARD}: left out"):
        np.testing.assert_array_equal(logprobs(directory), right)


def test_one_that_is_needed_is_missed_by_name(tmp_path: Path, weights: Tensors) -> None:
    index = {name: SHARD for name in weights if name != "model.norm.weight"}
    directory = laid(tmp_path / "c", {SHARD: weights}, index)
    with (
        pytest.warns(UserWarning, match="passes over model"),
        pytest.raises(CheckpointError, match=r"missing are model\.norm"),
    ):
        logprobs(directory)


@pytest.mark.parametrize("name", ["pytorch_model.safetensors", SHARD])
def test_one_file_of_another_name(name: str, tmp_path: Path, weights: Tensors, right: object) -> None:
    np.testing.assert_array_equal(logprobs(laid(tmp_path / "c", {name: weights})), right)


def test_shards_without_an_index(tmp_path: Path, weights: Tensors) -> None:
    directory = laid(tmp_path / "c", halves(weights))
    with pytest.raises(CheckpointError, match=rf"-00001-of.*, .*-00002-of.* and no {INDEX}, .*download that file too"):
        open_checkpoint(directory)


def test_a_stale_index_beside_a_whole_file(tmp_path: Path, weights: Tensors, right: object) -> None:
    """Whose files are gone: transformers, too, reads the whole one."""
    directory = laid(tmp_path / "c", {SINGLE: weights}, placed(halves(weights)))
    with pytest.warns(UserWarning, match=f"{INDEX} is stale: none of its files is there, so {SINGLE} is read"):
        np.testing.assert_array_equal(logprobs(directory), right)


def test_weights_that_are_there_twice(tmp_path: Path, weights: Tensors) -> None:
    """Which of them holds, nobody can tell."""
    files = halves(weights)
    with pytest.raises(CheckpointError, match=rf"holds the weights twice: {SINGLE}, and .*take away the copy"):
        open_checkpoint(laid(tmp_path / "c", files | {SINGLE: weights}, placed(files)))


def test_an_index_of_the_single_file(tmp_path: Path, weights: Tensors, right: object) -> None:
    directory = laid(tmp_path / "c", {SINGLE: weights}, dict.fromkeys(weights, SINGLE))
    np.testing.assert_array_equal(logprobs(directory), right)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_file_with_more_than_the_model(indexed: bool, tmp_path: Path, weights: Tensors) -> None:
    name = SHARD if indexed else SINGLE
    files = {name: weights, "scorer.safetensors": {"scorer.weight": torch.ones(2, 64)}}
    directory = laid(tmp_path / "c", files, dict.fromkeys(weights, name) if indexed else None)
    with pytest.raises(CheckpointError, match=r"scorer\.safetensors holds scorer\.weight, which .*take it away"):
        open_checkpoint(directory)


@pytest.mark.parametrize("name", ["older.safetensors", "consolidated.safetensors"])
def test_a_copy_is_left_out(name: str, tmp_path: Path, weights: Tensors, right: object) -> None:
    other = {"tok_embeddings.weight": torch.ones(2)} if name.startswith("cons") else {QUERY: torch.zeros(2)}
    directory = laid(tmp_path / "c", {SINGLE: weights, name: other})
    with pytest.warns(UserWarning, match=f"{name} is not among the model's own files: left out"):
        np.testing.assert_array_equal(logprobs(directory), right)


def test_no_weights(tmp_path: Path) -> None:
    directory = laid(tmp_path / "c", {})
    (directory / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=rf"{SINGLE} is missing; beside it there are pytorch_model\.bin, which"):
        open_checkpoint(directory)


@pytest.mark.parametrize("index", [[], {"a": 1}, "x"])
def test_an_index_that_is_none(index: object, tmp_path: Path, weights: Tensors) -> None:
    directory = laid(tmp_path / "c", {SHARD: weights})
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match="has no weight_map of names to files; download it again"):
        open_checkpoint(directory)


@pytest.mark.parametrize(("dtype", "said"), [
    (torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.int32, "I32"),
])  # fmt: skip
def test_numbers_that_need_a_scale(dtype: torch.dtype, said: str, tmp_path: Path, weights: Tensors) -> None:
    """No configuration says that they are quantised; cast they would be other weights."""
    directory = laid(tmp_path / "c", {SINGLE: weights | {QUERY: torch.ones_like(weights[QUERY]).to(dtype)}})
    with pytest.raises(CheckpointError, match=f"{QUERY} is stored as {said}, and read are F64"):
        logprobs(directory)
