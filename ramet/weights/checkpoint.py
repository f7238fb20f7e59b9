"""Checkpoint: a model's configuration, parameters, tokenizer and chat frame, whatever file they come in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ramet.errors import CheckpointError
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.weights.gguf import GgufCheckpoint
from ramet.weights.locate import locate
from ramet.weights.safetensors import SafetensorsCheckpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Checkpoint(Protocol):
    """name: the model's, for people. paths: where it was opened, and where that leads. model_type: transformers' word
    for the architecture. config: transformers' class of that type, with `tie_word_embeddings` as the files need it.
    generation: what generation_config.json holds. names: the parameters, as transformers names them; `lm_head.weight`
    is among them only if it is to be used. files: all that is read of it, or may be."""

    name: str
    paths: tuple[str, ...]
    model_type: str
    config: PretrainedConfig
    generation: Mapping[str, Any]
    names: frozenset[str]
    files: tuple[Path, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of `names`, known without reading it."""

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out`, of that shape and any dtype, in transformers' layout."""

    def tensor(self, name: str) -> torch.Tensor:
        """One of `names` by itself: F32, F16 and BF16 as stored, quantised ones in float32.

        It may be a view of the mapped file: not to be written.
        """

    def tokenizer(self) -> Tokenizer:
        """Built at the first call. Raises CheckpointError."""

    def template(self) -> str | None:
        """The chat template's text, if there is one."""

    def frame(self, asked: Mapping[str, Any] = MappingProxyType({})) -> Frame:
        """What the chat template, if there is one, writes around a user's content, its variables as `asked`. Raises
        CheckpointError."""


def open_checkpoint(source: str | Path, *, known: Collection[str] | None = None) -> Checkpoint:
    """Open "smollm2", a directory, a .gguf file or a hub id (see `locate`); weights are not read yet.

    `known` are the model types that can be served; None leaves that to whoever loads. Raises CheckpointError.
    """
    found = locate(source)
    if found.path.is_dir():
        return SafetensorsCheckpoint(found.path, found.name, known=known)
    checkpoint = GgufCheckpoint(found.path, found.name)
    if known is not None and checkpoint.model_type not in known:
        listed = ", ".join(sorted(known))
        raise CheckpointError(f"{found.path}: unknown architecture {checkpoint.model_type!r}; known are {listed}")
    return checkpoint
