"""SafetensorsCheckpoint: a directory of one or many *.safetensors files, read tensor by tensor from the mapped file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ramet.config import read_config, read_json
from ramet.errors import CheckpointError
from ramet.text.chat import Frame, frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_json import read_template, read_tokenizer
from ramet.weights.tying import resolve_tying

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_OLD = {  # how multimodal checkpoints begin names that transformers now begins otherwise
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
_COMPUTED = "rotary_emb.inv_freq"  # a buffer that older checkpoints saved; it follows from the configuration


class SafetensorsCheckpoint:
    """A `Checkpoint`. `known` are the model types that can be served, None for all that transformers has."""

    def __init__(self, directory: Path, name: str | None = None, *, known: Collection[str] | None = None) -> None:
        self._directory = directory
        self.name = name or directory.resolve().name
        self.config = read_config(directory, known)
        self.model_type = str(self.config.model_type)
        self.generation: Mapping[str, Any] = read_json(directory / "generation_config.json")
        files = _files(directory)
        self._files = {_renamed(name): (file, name) for name, file in files.items() if not name.endswith(_COMPUTED)}
        self.names = resolve_tying(frozenset(self._files), self.tensor, self.config, str(directory))

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._files[name]
        return tuple(file.get_slice(stored).get_shape())

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

    def frame(self) -> Frame:
        try:
            return frame(self._tokenizer, self.template())
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


def _files(directory: Path) -> dict[str, Any]:
    """The open file of every tensor; the index, if there is one, checked against what the files hold."""
    index = read_json(directory / _INDEX).get("weight_map")
    if index is None:
        single = _opened(directory / _SINGLE)
        return dict.fromkeys(single.keys(), single)
    files = {shard: _opened(directory / shard) for shard in sorted(set(index.values()))}
    placed = {(name, shard) for name, shard in index.items()}
    held = {(name, shard) for shard, file in files.items() for name in file.keys()}  # noqa: SIM118, no mapping
    for name, shard in sorted(placed - held):
        raise CheckpointError(f"{directory / shard}: {name} is absent, though {_INDEX} places it there; download again")
    for name, shard in sorted(held - placed):
        raise CheckpointError(f"{directory / shard}: {name} is unknown to {_INDEX}; download both again")
    return {name: files[shard] for name, shard in index.items()}


def _opened(path: Path) -> Any:
    """The mapped file; the library's type has no public name."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; download the checkpoint again, or finish the download")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error}); download it again") from error
