"""Random weights of an SDAR shape as a checkpoint on disk, for engines that take nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ramet.bench.core.named_shapes import BLOCK_SHAPES
from ramet.bench.core.random_model import RandomModel

_SHARD_BYTES = 1 << 30
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
    "architectures": ["SDARForCausalLM"],
    "auto_map": {"AutoConfig": _CLASS},
    "dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "use_cache": True,
}


def write(model: RandomModel, directory: Path) -> None:
    """Everything that a published checkpoint has; its tokenizer knows bytes alone."""
    raw = {**BLOCK_SHAPES[model.name], **_MORE}
    raw["pad_token_id"] = raw["eos_token_id"]  # LMDeploy asks for one, and configurations have none by themselves
    raw["rope_parameters"] = {"rope_theta": raw["rope_theta"], "rope_type": "default"}
    (directory / "config.json").write_text(json.dumps(raw, indent=1))
    ids = {"eos_token_id": raw["eos_token_id"], "bos_token_id": raw["bos_token_id"]}
    (directory / "generation_config.json").write_text(json.dumps(ids))
    (directory / "configuration_sdar.py").write_text(_CODE)
    _tokenizer().save_pretrained(directory)
    weights = {name: model.weights.part(name).to("cpu", copy=True) for name in sorted(model.weights.parts)}
    save_torch_state_dict(weights, directory, max_shard_size=_SHARD_BYTES)


def _tokenizer() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")  # noqa: S106
