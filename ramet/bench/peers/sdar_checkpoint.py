"""Random weights of an SDAR shape as a checkpoint on disk, for engines that take nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ramet.bench.core.named_shapes import BLOCK_SHAPES
from ramet.bench.core.random_model import RandomModel

_SHARD_BYTES = 1 << 30
_WRITERS = 8  # a thread copies and writes 1 to 2 GB a second
_CLASS = "configuration_sdar.SDARConfig"
# The published checkpoints bring a class of their own, for transformers does not know theirs.
_CODE = """from transformers.configuration_utils import PretrainedConfig


class SDARConfig(PretrainedConfig):
    model_type = "sdar"

    def __init__(self, **keys):
        for name, value in keys.items():
            setattr(self, name, value)
        super().__init__(**keys)
"""
_MORE: dict[str, Any] = {
    "architectures": ["SDARForCausalLM"], "auto_map": {"AutoConfig": _CLASS}, "dtype": "bfloat16",
    "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False, "sliding_window": None,
    "use_cache": True,
}  # fmt: skip


def write(model: RandomModel, directory: Path) -> None:
    """Everything that a published checkpoint has; its tokenizer knows bytes alone."""
    raw = {**BLOCK_SHAPES[model.name], **_MORE}
    raw["pad_token_id"] = raw["eos_token_id"]  # LMDeploy asks for one, and configurations have none by themselves
    raw["rope_parameters"] = {"rope_theta": raw["rope_theta"], "rope_type": "default"}
    (directory / "config.json").write_text(json.dumps(raw, indent=1))
    ids = {"eos_token_id": raw["eos_token_id"], "bos_token_id": raw["bos_token_id"]}
    (directory / "generation_config.json").write_text(json.dumps(ids))
    (directory / "configuration_sdar.py").write_text(_CODE)
    _write_tokenizer(directory)
    _write_weights(model, directory)


def _write_weights(model: RandomModel, directory: Path) -> None:
    shards = list(_shards(model))
    places = {name: f"model-{i:05d}.safetensors" for i, names in enumerate(shards) for name in names}

    def save(names: list[str]) -> int:
        shard = {name: model.weights.part(name).to("cpu", copy=True) for name in names}
        save_file(shard, directory / places[names[0]], {"format": "pt"})
        return sum(each.nbytes for each in shard.values())

    with ThreadPoolExecutor(_WRITERS) as pool:
        n_bytes = sum(pool.map(save, shards))
    index = {"metadata": {"total_size": n_bytes}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _shards(model: RandomModel) -> Iterator[list[str]]:
    """Names of parameters, in files of some size."""
    names, n_bytes = list[str](), 0
    for name in sorted(model.weights.parts):
        names.append(name)
        n_bytes += model.weights.part(name).nbytes
        if n_bytes > _SHARD_BYTES:
            yield names
            names, n_bytes = [], 0
    if names:
        yield names


def _write_tokenizer(directory: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
