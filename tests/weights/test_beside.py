"""Directories that are more than their weights: refused by the names of what lies beside them, before all else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fixtures import tiny
from fixtures.tiny_engine import tiny_engine
from safetensors.torch import save_file
from torch import ones

from ramet import cli
from ramet.errors import CheckpointError
from ramet.weights import open_checkpoint
from ramet.weights.beside import PARTS
from tests.weights.test_checkpoint import copied

QUANTISED: list[dict[str, Any]] = [
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "compressed-tensors", "format": "float-quantized"},
    {"quant_method": "awq", "bits": 4},
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
]


def with_file(directory: Path, name: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file({"weight": ones(1, 64)}, path)
    else:
        path.write_text("{}")
    return directory


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Also in a snapshot of the hub's cache, whose files are links."""
    directory = with_file(copied(tiny.qwen3(), tmp_path / "c"), name)
    with pytest.raises(CheckpointError, match=r"more than its weights: it holds .*which is not read here") as caught:
        open_checkpoint(directory)
    assert f"{name} ({PARTS[name]})" in str(caught.value).partition("\n")[0]
    snapshot = tmp_path / "models--acme--wren" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    for path in (path for path in directory.rglob("*") if path.is_file()):
        link = snapshot / path.relative_to(directory)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    with pytest.raises(CheckpointError, match="more than its weights"):
        open_checkpoint(snapshot)


def test_all_parts_are_named_at_once(tmp_path: Path) -> None:
    directory = copied(tiny.qwen3(), tmp_path / "c")
    for name in ("head.safetensors", "decision_config.json", "adapter_config.json"):
        with_file(directory, name)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json .*decision_config\.json .*head\.safetensors "):
        open_checkpoint(directory)


def test_an_adapter_alone(tmp_path: Path) -> None:
    """Which has no config.json: not that is the cause."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        with_file(tmp_path, name)
    arguments = ["decide", "--state", "x", "--noul", "q=Is it?", "--model", str(tmp_path), "--device", "cpu"]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 1
    first = result.stderr.replace("\n", " ")
    assert "adapter_config.json (an adapter (LoRA)), adapter_model.safetensors" in first
    assert "merge it into its base model" in first


@pytest.mark.parametrize("told", QUANTISED)
def test_quantised_weights(told: dict[str, Any], tmp_path: Path) -> None:
    """The cause first, whatever else does not fit."""
    directory = copied(tiny.qwen3(), tmp_path / "c", quantization_config=told)
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=rf"^[^\n]*quantization_config says {told['quant_method']}: weights that"):
        open_checkpoint(directory)


@pytest.mark.parametrize("make", [tiny.gemma3, tiny.qwen3_5])
def test_quantised_weights_of_the_text_model(make: Any, tmp_path: Path) -> None:
    source = make(multimodal=True)
    text = json.loads((source / "config.json").read_text())["text_config"] | {"quantization_config": QUANTISED[0]}
    with pytest.raises(CheckpointError, match="quantization_config says fp8"):
        open_checkpoint(copied(source, tmp_path / "c", text_config=text))


def test_layers_that_are_overridden(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="modeling_overrides changes the model's own layers"):
        open_checkpoint(copied(tiny.qwen3(), tmp_path / "c", modeling_overrides={"attention": "bidirectional"}))


def test_files_that_belong_to_any_model_pass(tmp_path: Path) -> None:
    directory = copied(tiny.qwen3(), tmp_path / "c", quantization_config=None, modeling_overrides=None)
    for name in ("special_tokens_map.json", "vocab.json", "preprocessor_config.json", "merges.txt", "README.md"):
        with_file(directory, name)
    tiny_engine(source=directory).close()
