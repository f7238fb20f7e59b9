"""Checkpoint: a model's configuration, parameters, tokenizer and chat frame, whatever file they come in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ramet.families import Family
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.weights.gguf import GgufCheckpoint
from ramet.weights.locate import locate
from ramet.weights.safetensors import SafetensorsCheckpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Checkpoint(Protocol):
    """A model's files, opened.

    name: the model's name, for people. paths: the path that was opened, and the one that it leads to. files: all files
    that are read, or may be. model_type: config.json's word for the architecture; family: what Ramet knows of it.
    config: an object of transformers' class for that type, with `tie_word_embeddings` as the files need it. generation:
    the content of generation_config.json. names: the parameters, as transformers names them; `lm_head.weight` is among
    them only if the model uses it.
    """

    name: str
    paths: tuple[str, ...]
    model_type: str
    family: Family
    config: PretrainedConfig
    generation: Mapping[str, Any]
    names: frozenset[str]
    files: tuple[Path, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of `names`, known without reading it."""

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out`, which has the parameter's shape and any dtype, in transformers' layout."""

    def tensor(self, name: str) -> torch.Tensor:
        """One of `names` by itself: F32, F16 and BF16 as stored, quantised ones in float32.

        It may be a view of the mapped file, which nobody may write to.
        """

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, built at the first call. Raises CheckpointError."""

    def template(self) -> str | None:
        """The chat template's text, if there is one."""

    def frame(self, variables: Mapping[str, Any] = MappingProxyType({})) -> Frame:
        """What the chat template, if any, writes around a user's content, with these variables. Raises
        CheckpointError."""


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open "smollm2", a directory, a .gguf file or a hub id (see `locate`), without reading weights yet. Raises
    CheckpointError, which lists the known families where the model is of another one."""
    found = locate(source)
    opened = SafetensorsCheckpoint if found.path.is_dir() else GgufCheckpoint
    return opened(found.path, found.name)
