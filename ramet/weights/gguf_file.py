"""GgufFile: a GGUF file's metadata and tensors, memory-mapped.

The types, block sizes and dequantisers are the `gguf` package's. Its reader is not used: it makes a numpy view of
every string, which takes 2.3 s for a vocabulary of 49 thousand entries where this takes 0.1 s.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ramet.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_CHUNK_NUMBERS = 1 << 14  # dequantised at a time
_SCALARS = {  # of gguf.GGUFValueType
    gguf.GGUFValueType.UINT8: "B",
    gguf.GGUFValueType.INT8: "b",
    gguf.GGUFValueType.UINT16: "H",
    gguf.GGUFValueType.INT16: "h",
    gguf.GGUFValueType.UINT32: "I",
    gguf.GGUFValueType.INT32: "i",
    gguf.GGUFValueType.UINT64: "Q",
    gguf.GGUFValueType.INT64: "q",
    gguf.GGUFValueType.FLOAT32: "f",
    gguf.GGUFValueType.FLOAT64: "d",
    gguf.GGUFValueType.BOOL: "?",
}
_STORED = {  # types that hold plain numbers, and the view that numpy has of them
    gguf.GGMLQuantizationType.F32: (np.float32, torch.float32),
    gguf.GGMLQuantizationType.F16: (np.float16, torch.float16),
    gguf.GGMLQuantizationType.BF16: (np.int16, torch.bfloat16),
}


@dataclass(frozen=True)
class _Entry:
    """A tensor's place. shape: torch's order; offset, n_bytes: of its data in the file."""

    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


class GgufFile:
    """metadata: the file's keys and values. Raises CheckpointError for a file that is none, or is cut short."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _mapped(path)
        try:
            self.metadata, self._entries = _Header(self._bytes, path).read()
        except (struct.error, UnicodeDecodeError, ValueError, KeyError, IndexError) as error:
            raise CheckpointError(f"{path}: damaged or cut short ({error}); download it again") from error

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name, in GGUF's words, and its shape in torch's order."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def dtype(self, name: str) -> torch.dtype:
        """What a tensor is read as: as it is stored, or float32 if it is quantised."""
        kind = self._entries[name].kind
        return _STORED[kind][1] if kind in _STORED else torch.float32

    def read(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        """Fill `out` with the numbers of a tensor in their order, from row `first` on. `out` is of any dtype and shape.

        Quantised rows are read a few at a time: temporaries of whole tensors take longer to map into memory than their
        numbers take to compute, and torch copies larger pieces on all its threads, which on a busy machine wait.
        """
        entry = self._entries[name]
        data = self._bytes[entry.offset : entry.offset + entry.n_bytes]
        n_rows = out.numel() * entry.shape[0] // math.prod(entry.shape)
        rows = data.reshape(entry.shape[0], -1)[first : first + n_rows]
        if entry.kind in _STORED:
            view, dtype = _STORED[entry.kind]
            out.copy_(torch.from_numpy(rows.view(view)).view(dtype).view(out.shape))
            return
        per_item = n_rows // len(out)  # rows that make one entry of out's first dimension
        step = max(1, _CHUNK_NUMBERS * len(out) // out.numel())
        try:
            for at in range(0, len(out), step):
                with np.errstate(invalid="ignore", over="ignore"):  # a broken scale is named by who reads the tensor
                    numbers = gguf.quants.dequantize(rows[at * per_item : (at + step) * per_item], entry.kind)
                out[at : at + step].copy_(torch.from_numpy(numbers).view(-1, *out.shape[1:]))
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path}: {name} is stored as {entry.kind.name}, which the gguf package cannot read; "
                "take a file in Q8_0, Q4_K_M or Q4_0"
            ) from error


class _Header:
    """Reads what stands before the tensors' data, from its start on."""

    def __init__(self, data: np.ndarray[Any, np.dtype[np.uint8]], path: Path) -> None:
        self._view = data.data
        self._path = path
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, _Entry]]:
        if bytes(self._view[:4]) != _MAGIC:
            raise CheckpointError(f"{self._path}: not a GGUF file")
        self._at = 4
        version, n_tensors, n_keys = self._unpack("IQQ")
        if version not in _VERSIONS:
            raise CheckpointError(f"{self._path}: GGUF version {version}; read are {_VERSIONS}, little-endian")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._string()
            metadata[key] = self._value(self._unpack("I")[0])
        found = [self._tensor() for _ in range(n_tensors)]
        alignment = int(metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        return metadata, {name: self._entry(name, kind, shape, start + at) for name, kind, shape, at in found}

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._view, self._at)
        self._at += struct.calcsize(f"<{layout}")
        return values

    def _string(self) -> str:
        (size,) = self._unpack("Q")
        self._at += size
        return str(self._view[self._at - size : self._at], "utf-8")

    def _value(self, kind: int) -> Any:
        if kind == gguf.GGUFValueType.STRING:
            return self._string()
        if kind != gguf.GGUFValueType.ARRAY:
            return self._unpack(_SCALARS[gguf.GGUFValueType(kind)])[0]
        item, size = self._unpack("IQ")
        if item in (gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY):
            read: Callable[[], Any] = self._string if item == gguf.GGUFValueType.STRING else lambda: self._value(item)
            return [read() for _ in range(size)]
        return list(self._unpack(f"{size}{_SCALARS[gguf.GGUFValueType(item)]}"))

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        shape = self._unpack(f"{self._unpack('I')[0]}Q")[::-1]  # GGUF counts the fastest dimension first
        kind, offset = self._unpack("IQ")
        return name, kind, shape, offset

    def _entry(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> _Entry:
        stored = gguf.GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[stored]
        n_bytes = math.prod(shape) // block * size
        if offset + n_bytes > len(self._view) or shape[-1] % block:
            raise CheckpointError(f"{self._path}: {name} reaches behind the end of the file; download it again")
        return _Entry(stored, shape, offset, n_bytes)


def _mapped(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a file, private and writable, as torch wants them; nobody writes."""
    try:
        return np.asarray(np.memmap(path, np.uint8, mode="c"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
