"""Random weights of an SDAR shape as a checkpoint on disk, for engines that take nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ramet.bench.block_shapes import RAW
from ramet.bench.random_model import RandomModel

_SHARD_BYTES = 2 << 30
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
    "architectures": ["SDARForCausalLM"], "auto_map": {"AutoConfig": _CLASS}, "torch_dtype": "bfloat16",
    "dtype": "bfloat16", "rope_scaling": None, "attention_bias": False, "attention_dropout": 0.0,
    "use_sliding_window": False, "sliding_window": None, "use_cache": True,
}  # fmt: skip


def write(model: RandomModel, directory: Path) -> None:
    """Everything that a published checkpoint has; its tokenizer knows bytes alone."""
    raw = {**RAW[model.name], **_MORE}
    (directory / "config.json").write_text(json.dumps(raw, indent=1))
    ids = {"eos_token_id": raw["eos_token_id"], "bos_token_id": raw["bos_token_id"]}
    (directory / "generation_config.json").write_text(json.dumps(ids))
    (directory / "configuration_sdar.py").write_text(_CODE)
    _write_tokenizer(directory)
    _write_weights(model, directory)


def _write_weights(model: RandomModel, directory: Path) -> None:
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    n_bytes = 0

    def flush() -> None:
        name = f"model-{len(set(places.values())):05d}.safetensors"
        save_file(shard, directory / name, {"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        shard.clear()

    for name in sorted(model.weights.parts):
        shard[name] = model.weights.part(name).cpu().clone(memory_format=torch.contiguous_format)
        n_bytes += shard[name].nbytes
        if sum(each.nbytes for each in shard.values()) > _SHARD_BYTES:
            flush()
    if shard:
        flush()
    index = {"metadata": {"total_size": n_bytes}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_tokenizer(directory: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(told))
