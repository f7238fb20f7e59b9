"""SafetensorsCheckpoint: a directory of one or many *.safetensors files, read tensor by tensor from the mapped file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ramet.config import read_config, read_json
from ramet.errors import CheckpointError
from ramet.text.chat import Frame, frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_json import read_template, read_tokenizer
from ramet.weights.shards import COMPUTED, open_tensors
from ramet.weights.tying import resolve_tying

_READ = ("F64", "F32", "F16", "BF16")  # kinds of stored numbers; others need scales, which the file does not explain
_OLD = {  # how multimodal checkpoints begin names that transformers now begins otherwise
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}


class SafetensorsCheckpoint:
    """A `Checkpoint`. `known` are the model types that can be served, None for all that transformers has."""

    def __init__(self, directory: Path, name: str | None = None, *, known: Collection[str] | None = None) -> None:
        self._directory = directory
        self.name = name or directory.resolve().name
        self.paths: tuple[str, ...] = (str(directory.absolute()), str(directory.resolve()))
        self.config = read_config(directory, known)
        self.model_type = str(self.config.model_type)
        self.generation: Mapping[str, Any] = read_json(directory / "generation_config.json")
        tensors, shards = open_tensors(directory)
        self.files = (*shards, *sorted([*directory.glob("*.json"), *directory.glob("*.jinja")]))
        self._files = {_renamed(name): (file, name) for name, file in tensors.items() if not name.endswith(COMPUTED)}
        self.names = resolve_tying(frozenset(self._files), self.tensor, self.config, str(directory))

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._files[name]
        part = file.get_slice(stored)
        if (kind := part.get_dtype()) not in _READ:
            raise CheckpointError(
                f"{self._directory}: {stored} is stored as {kind}, and read are {', '.join(_READ)}: take the release "
                "in bfloat16, or a GGUF file"
            )
        return tuple(part.get_shape())

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out`, of the parameter's shape and any dtype."""
        out.copy_(self.tensor(name))

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter as stored, a view of the mapped file."""
        file, stored = self._files[name]
        tensor: torch.Tensor = file.get_tensor(stored)
        return tensor

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def template(self) -> str | None:
        return read_template(self._directory)

    def frame(self, asked: Mapping[str, Any] = MappingProxyType({})) -> Frame:
        try:
            return frame(self._tokenizer, self.template(), asked)
        except CheckpointError as error:
            raise CheckpointError(f"{self._directory}: {error}") from error

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        generation = self.generation.get("eos_token_id")
        configs = (self.config, self.config.get_text_config())  # a multimodal model's own may have none
        ids = [i for config in configs for i in _ids(getattr(config, "eos_token_id", None))]
        return read_tokenizer(self._directory, [*dict.fromkeys(ids), *_ids(generation)])


def _ids(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def _renamed(name: str) -> str:
    old = next((old for old in _OLD if name.startswith(old)), "")
    return _OLD.get(old, "") + name.removeprefix(old)
