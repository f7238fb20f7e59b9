"""SafetensorsCheckpoint: a directory of one or many *.safetensors files, read tensor by tensor from the mapped file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ramet.config import config_of, raw_config
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.foreign import Fields, check_numbers, read_json
from ramet.sizes import Held
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_json import read_template, read_tokenizer
from ramet.weights.beside import CALIBRATION
from ramet.weights.fitting import check_fits, fitting_frame
from ramet.weights.shards import COMPUTED, open_tensors
from ramet.weights.tying import embedding_of, resolve_tying

_READ = ("F64", "F32", "F16", "BF16")  # kinds of stored numbers; others need scales, which the file does not explain


class SafetensorsCheckpoint:
    """A `Checkpoint` in a directory."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        self._directory = directory
        self.name = name or directory.resolve().name
        self.paths: tuple[str, ...] = (str(directory.absolute()), str(directory.resolve()))
        raw = raw_config(directory, FAMILIES)
        self.model_type = str(raw["model_type"])
        self.family = FAMILIES[self.model_type]
        self.generation: Mapping[str, Any] = _generation(directory / "generation_config.json")
        tensors, shards = open_tensors(directory)
        told = [file for file in directory.glob("*.json") if file.name != CALIBRATION]
        self.files = (*shards, *sorted([*told, *directory.glob("*.jinja")]))
        self._files = _renamed_all(tensors, self.family.old_names, directory)
        embedding_of(self._files, self.family, str(directory))  # there is one
        held = Held.of(tuple(file.get_slice(stored).get_shape()) for file, stored in self._files.values())
        self.config = config_of(raw, FAMILIES, str(directory / "config.json"), held)
        self.names = resolve_tying(frozenset(self._files), self.tensor, self.config, self.family, str(directory))

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

    def frame(self, variables: Mapping[str, Any] = MappingProxyType({})) -> Frame:
        return fitting_frame(self._tokenizer, self.template(), variables, self._n_rows, str(self._directory))

    @property
    def _n_rows(self) -> int:
        return int(self.config.get_text_config().vocab_size)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        configs = (self.config, self.config.get_text_config())  # a multimodal model's own may have none
        listed = [Fields(vars(config), str(self._directory / "config.json")) for config in configs]
        listed.append(Fields(self.generation, str(self._directory / "generation_config.json")))
        ids = dict.fromkeys(i for fields in listed for i in fields.ids("eos_token_id"))
        return check_fits(read_tokenizer(self._directory, ids), self._n_rows, str(self._directory))


def _generation(path: Path) -> dict[str, Any]:
    found = read_json(path)
    check_numbers(found, str(path))
    return found


def _renamed_all(
    tensors: Mapping[str, Any], old_names: Mapping[str, str], directory: Path
) -> dict[str, tuple[Any, str]]:
    """The open file of each parameter and its name in it, by the parameter's name. Raises CheckpointError."""
    found: dict[str, tuple[Any, str]] = {}
    for stored, file in tensors.items():
        name = _renamed(stored, old_names)
        if name in found:
            raise CheckpointError(
                f"{directory}: {stored} and {found[name][1]} are one parameter, {name}; take one away"
            )
        if not stored.endswith(COMPUTED):
            found[name] = file, stored
    return found


def _renamed(name: str, old_names: Mapping[str, str]) -> str:
    old = next((old for old in old_names if name.startswith(old)), "")
    return old_names.get(old, "") + name.removeprefix(old)
