"""Checkpoints of every family that are not what they say: refused by the engine and the command line, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fixtures import tiny
from fixtures.tiny_engine import MAKERS, tiny_engine
from safetensors.torch import load_file, save_file

from ramet import cli
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from tests.weights.test_checkpoint import copied
from tests.weights.test_loading import logprobs

FAMILY = pytest.mark.parametrize("family", sorted(MAKERS))
NORM = "model.norm.weight"


def changed(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy with other weights."""
    directory = copied(source, target)
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def sharded(source: Path, target: Path) -> tuple[Path, list[Path]]:
    """A copy in several files, and these."""
    directory = copied(source, target)
    (directory / "model.safetensors").unlink()
    tiny.model(source).save_pretrained(directory, max_shard_size="100KB")
    shards = sorted(directory.glob("*.safetensors"))
    assert len(shards) > 2
    return directory, shards


@FAMILY
def test_a_shard_that_is_not_there(family: str, tmp_path: Path) -> None:
    directory, shards = sharded(MAKERS[family](), tmp_path / "c")
    tiny_engine(source=directory).close()
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=rf"{shards[1].name} is missing; download"):
        tiny_engine(source=directory)


@FAMILY
def test_a_shard_that_is_cut_short(family: str, tmp_path: Path) -> None:
    directory, shards = sharded(MAKERS[family](), tmp_path / "c")
    shards[-1].write_bytes(shards[-1].read_bytes()[:-64])
    with pytest.raises(CheckpointError, match=rf"{shards[-1].name} is damaged or cut short"):
        tiny_engine(source=directory)


@FAMILY
def test_every_parameter_of_another_shape(family: str, tmp_path: Path) -> None:
    """One at a time, each named; also one that is a single number, which no parameter of ours is."""
    source = MAKERS[family]()
    weights = load_file(source / "model.safetensors")
    layers = {name for name in weights if ".layers." not in name or ".layers.0." in name or ".layers.3." in name}
    directory = copied(source, tmp_path / "c")
    for n, name in enumerate(sorted(layers)):
        odd = torch.ones(()) if n % 2 else torch.ones(*(size + 1 for size in weights[name].shape))
        save_file(weights | {name: odd}, directory / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=rf"{name} {re.escape(str(tuple(odd.shape)))}.*download both again"):
            tiny_engine(source=directory)


@FAMILY
def test_a_parameter_that_is_not_there(family: str, tmp_path: Path) -> None:
    directory = changed(MAKERS[family](), tmp_path / "c", lambda weights: weights.__delitem__(NORM))
    with pytest.raises(CheckpointError, match=rf"missing are {NORM}$"):
        tiny_engine(source=directory)


@FAMILY
@pytest.mark.parametrize("said", ["qwen3_6", None, "mamba"])
def test_a_model_type_that_is_not_known(family: str, said: str | None, tmp_path: Path) -> None:
    """The message lists all that are."""
    known = ", ".join(sorted(FAMILIES))
    with pytest.raises(CheckpointError, match=rf"unknown model_type {said!r}; known are {known}$"):
        tiny_engine(source=copied(MAKERS[family](), tmp_path / "c", model_type=said))


@FAMILY
def test_a_type_of_layer_that_is_not_known(family: str, tmp_path: Path) -> None:
    n = json.loads((MAKERS[family]() / "config.json").read_text())["num_hidden_layers"]
    kinds = ["chunked_attention"] * (n - 1) + ["full_attention"]
    with pytest.raises(CheckpointError, match="chunked_attention"):
        tiny_engine(source=copied(MAKERS[family](), tmp_path / "c", layer_types=kinds))


@FAMILY
def test_weights_of_another_family(family: str, tmp_path: Path) -> None:
    source, other = MAKERS[family](), MAKERS["llama" if family == "qwen3_5" else "qwen3_5"]()
    directory = copied(source, tmp_path / "c")
    (directory / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    said = json.loads((source / "config.json").read_text())["model_type"]
    with pytest.raises(CheckpointError, match=rf"not those of a {said} model: missing are .*; nothing uses"):
        tiny_engine(source=directory)


MULTIMODAL = pytest.mark.parametrize("multimodal", [False, True])


@MULTIMODAL
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "qwen3_5"])
def test_tied_by_the_configuration_with_a_head_in_the_file(family: str, multimodal: bool, tmp_path: Path) -> None:
    """D6: the file's is used, with a warning; also where the flag is the text model's."""
    source = MAKERS[family](tied=False, multimodal=multimodal)
    directory = retied(source, tmp_path / "c", tied=True)
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs from the embedding, so it is used"):
        np.testing.assert_array_equal(logprobs(directory), logprobs(source))


@MULTIMODAL
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "qwen3_5"])
def test_untied_by_the_configuration_without_a_head(family: str, multimodal: bool, tmp_path: Path) -> None:
    """D6: the embedding serves, with a warning."""
    source = MAKERS[family](multimodal=multimodal)
    directory = retied(source, tmp_path / "c", tied=False)
    with pytest.warns(UserWarning, match="so the embedding serves as head"):
        np.testing.assert_array_equal(logprobs(directory), logprobs(source))


def retied(source: Path, target: Path, *, tied: bool) -> Path:
    """A copy whose configuration says otherwise, at every level that says it."""
    raw = json.loads((source / "config.json").read_text())
    inner = {"text_config": raw["text_config"] | {"tie_word_embeddings": tied}} if "text_config" in raw else {}
    return copied(source, target, tie_word_embeddings=tied, **inner)


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "qwen3_5"])
def test_the_command_line_says_so_and_fails(family: str, tmp_path: Path) -> None:
    directory, shards = sharded(MAKERS[family](), tmp_path / "c")
    shards[0].unlink()
    arguments = ["--state", "x", "--noul", "q=Is it late?", "--model", str(directory), "--device", "cpu"]
    result = CliRunner().invoke(cli.main, ["decide", *arguments])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert f"{shards[0].name} is missing" in result.stderr
    assert isinstance(result.exception, SystemExit)  # told, not traced
