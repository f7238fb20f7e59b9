"""GgufCheckpoint: a model in one GGUF file, under transformers' names and in its layout."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ramet.errors import CheckpointError
from ramet.families import FAMILIES, architectures, gguf_pre_tokenizers
from ramet.families.gguf import GgufArchitecture
from ramet.foreign import Fields
from ramet.quoting import shown
from ramet.sizes import Held
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_gguf import gguf_tokenizer
from ramet.text.tokenizer_json import MOST_TEMPLATE
from ramet.weights.finite import check_finite
from ramet.weights.fitting import check_fits, fitting_frame
from ramet.weights.gguf_config import gguf_config
from ramet.weights.gguf_file import GgufFile

_ROPE_FACTORS = "rope_freqs.weight"  # no parameter: what the frequencies are divided by (Llama 3.1)


class GgufCheckpoint:
    """A `Checkpoint` in a GGUF file. Without `output.weight` the head is the embedding, as converters mean it."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._file = GgufFile(path)
        self._fields = Fields(self._file.metadata, str(path))
        self.name = name or path.stem
        self.paths: tuple[str, ...] = (str(path.absolute()), str(path.resolve()))
        self.files: tuple[Path, ...] = (path,)
        self.generation: Mapping[str, Any] = {}
        self._architecture = _architecture(self._file, self._fields)
        self.model_type = self._architecture.model_type
        self.family = FAMILIES[self.model_type]
        self._sources = _sources(self._file, self._architecture, self.family.embedding)
        self.names = frozenset(self._sources)
        self.config = gguf_config(
            self._file.metadata,
            self._architecture,
            where=str(path),
            vocab_size=self._file.shapes["token_embd.weight"][0],
            tied="lm_head.weight" not in self.names,
            biased=any(name.endswith("q_proj.bias") for name in self.names),
            rope_factors=self._rope_factors(),
            held=Held.of(self._file.shapes.values()),
        )

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shapes[self._sources[name]]

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` with a parameter, by transformers' name and in its layout."""
        if self._architecture.whole_norms and name.endswith("norm.weight"):
            whole = torch.empty(out.shape)
            self._file.read(self._sources[name], whole)
            out.copy_(whole - 1)
            return
        n_heads = self._interleaved_heads(name)
        if n_heads is None:
            self._file.read(self._sources[name], out)
            return
        for head, rows in enumerate(_pairs(out, n_heads)):
            self._file.read(self._sources[name], rows, first=head * len(out) // n_heads)

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of a parameter in the dtype in which it is stored; a quantised one in float32."""
        out = torch.empty(self.shape(name), dtype=self._file.dtype(self._sources[name]))
        self.read(name, out)
        return out

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def template(self) -> str | None:
        return self._fields.text("tokenizer.chat_template", MOST_TEMPLATE)

    def frame(self, variables: Mapping[str, Any] = MappingProxyType({})) -> Frame:
        return fitting_frame(self._tokenizer, self.template(), variables, self.config.vocab_size, str(self._file.path))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        found = gguf_tokenizer(self._file.metadata, str(self._file.path), gguf_pre_tokenizers())
        return check_fits(found, self.config.vocab_size, str(self._file.path))

    def _interleaved_heads(self, name: str) -> int | None:
        """How many heads a parameter's rows make, if GGUF has them in another order than transformers."""
        if self._architecture.interleaved and ".q_proj." in name:
            return int(self.config.num_attention_heads)
        return int(self.config.num_key_value_heads) if self._architecture.interleaved and ".k_proj." in name else None

    def _rope_factors(self) -> list[float] | None:
        if _ROPE_FACTORS not in self._file.shapes:
            return None
        factors = torch.empty(math.prod(self._file.shapes[_ROPE_FACTORS]))
        self._file.read(_ROPE_FACTORS, factors)
        check_finite(factors, _ROPE_FACTORS, str(self._file.path))
        return factors.tolist()


def _architecture(file: GgufFile, fields: Fields) -> GgufArchitecture:
    if (kind := fields.text("general.type") or "model") != "model":
        raise CheckpointError(
            f"{file.path}: general.type is {shown(kind)}: it belongs to a model and is none; name the model's"
        )
    name = fields.text("general.architecture")
    known = architectures()
    if name is None or name not in known:
        names = ", ".join(known)
        raise CheckpointError(f"{file.path}: unknown general.architecture {shown(name)}; known are {names}")
    if (parts := fields.whole("split.count") or 1) > 1:
        raise CheckpointError(f"{file.path}: one of {parts} parts; join them with `llama-gguf-split --merge`")
    if "token_embd.weight" not in file.shapes:
        raise CheckpointError(f"{file.path}: token_embd.weight is missing; download the file again")
    return known[name]


def _sources(file: GgufFile, architecture: GgufArchitecture, embedding: str) -> dict[str, str]:
    """GGUF's name of every parameter, by transformers' name."""
    outer = {"token_embd": f"model.{embedding}", "output_norm": "model.norm", "output": "lm_head"}
    sources: dict[str, str] = {}
    for name in file.shapes:
        if name == _ROPE_FACTORS:
            continue
        stem, _, kind = name.rpartition(".")
        block = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        module = architecture.layer_tensors.get(block[2]) if block else outer.get(stem)
        if module is None or kind not in ("weight", "bias"):
            raise CheckpointError(f"{file.path}: {name} is no tensor of architecture {architecture.model_type!r}")
        prefix = f"model.layers.{block[1]}." if block else ""
        sources[f"{prefix}{module}.{kind}"] = name
    return sources


def _pairs(tensor: torch.Tensor, n_heads: int) -> torch.Tensor:
    """A view [H, D/2, 2, ...] in GGUF's order of rows of a tensor [H * D, ...] in transformers'."""
    return tensor.view(n_heads, 2, -1, *tensor.shape[1:]).transpose(1, 2)
