"""SafetensorsCheckpoint: a directory of one or many *.safetensors files, read tensor by tensor from the mapped file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ramet.config import config_of, raw_config
from ramet.errors import CheckpointError
from ramet.foreign import Fields, check_numbers, read_json
from ramet.sizes import Held
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_json import read_template, read_tokenizer
from ramet.weights.fitting import check_fits, fitting_frame
from ramet.weights.shards import COMPUTED, open_tensors
from ramet.weights.tying import embedding_of, resolve_tying

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
        raw = raw_config(directory, known)
        self.generation: Mapping[str, Any] = _generation(directory / "generation_config.json")
        tensors, shards = open_tensors(directory)
        self.files = (*shards, *sorted([*directory.glob("*.json"), *directory.glob("*.jinja")]))
        self._files = _renamed_all(tensors, directory)
        embedding_of(self._files, str(directory))  # there is one
        held = Held.of(tuple(file.get_slice(stored).get_shape()) for file, stored in self._files.values())
        self.config = config_of(raw, str(directory / "config.json"), held)
        self.model_type = str(self.config.model_type)
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
        return fitting_frame(self._tokenizer, self.template(), asked, self._n_rows, str(self._directory))

    @property
    def _n_rows(self) -> int:
        return int(self.config.get_text_config().vocab_size)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        configs = (self.config, self.config.get_text_config())  # a multimodal model's own may have none
        told = [Fields(vars(config), str(self._directory / "config.json")) for config in configs]
        told.append(Fields(self.generation, str(self._directory / "generation_config.json")))
        ids = dict.fromkeys(i for fields in told for i in fields.ids("eos_token_id"))
        return check_fits(read_tokenizer(self._directory, ids), self._n_rows, str(self._directory))


def _generation(path: Path) -> dict[str, Any]:
    found = read_json(path)
    check_numbers(found, str(path))
    return found


def _renamed_all(tensors: Mapping[str, Any], directory: Path) -> dict[str, tuple[Any, str]]:
    """The open file of each parameter and its name in it, by the parameter's name. Raises CheckpointError."""
    found: dict[str, tuple[Any, str]] = {}
    for stored, file in tensors.items():
        name = _renamed(stored)
        if name in found:
            raise CheckpointError(
                f"{directory}: {stored} and {found[name][1]} are one parameter, {name}; take one away"
            )
        if not stored.endswith(COMPUTED):
            found[name] = file, stored
    return found


def _renamed(name: str) -> str:
    old = next((old for old in _OLD if name.startswith(old)), "")
    return _OLD.get(old, "") + name.removeprefix(old)
