"""GgufFile: a GGUF file's metadata and tensors, memory-mapped.

The types, block sizes and dequantisers are the `gguf` package's. Its reader is not used: it makes a numpy view of
every string, which takes 2.3 s for a vocabulary of 49 thousand entries where this takes 0.1 s.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ramet.errors import CheckpointError
from ramet.foreign import check_regular
from ramet.weights.gguf_header import Header
from ramet.weights.quants import dequantize

_CHUNK_NUMBERS = 1 << 18  # dequantised at a time
_STORED = {  # types that hold plain numbers, and the view that numpy has of them
    gguf.GGMLQuantizationType.F32: (np.float32, torch.float32),
    gguf.GGMLQuantizationType.F16: (np.float16, torch.float16),
    gguf.GGMLQuantizationType.BF16: (np.int16, torch.bfloat16),
}


class GgufFile:
    """metadata: the file's keys and values. shapes: by every tensor's GGUF name, its shape in torch's order. Raises
    CheckpointError for a file that is no GGUF file, is cut short, or contradicts itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _mapped(path)
        self.metadata, self._entries = Header(self._bytes.data, path).read()
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}

    def dtype(self, name: str) -> torch.dtype:
        """The dtype in which a tensor is read: the stored one, or float32 if it is quantised."""
        kind = self._entries[name].kind
        return _STORED[kind][1] if kind in _STORED else torch.float32

    def read(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        """Fill `out`, of any dtype and shape, with a tensor's numbers in their order, from row `first` on.

        Dequantises rows a few at a time: temporaries of whole tensors take longer to map into memory than their
        numbers take to compute.
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
        numbers = torch.empty(min(step, len(out)), *out.shape[1:])
        try:
            for at in range(0, len(out), step):
                piece = numbers[: len(out) - at]
                dequantize(rows[at * per_item : (at + step) * per_item], entry.kind, piece)
                out[at : at + step].copy_(piece)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path}: {name} is stored as {entry.kind.name}, which the gguf package cannot read; "
                "take a file in Q8_0, Q4_K_M or Q4_0"
            ) from error


def _mapped(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a file, mapped private and writable, as torch demands; nobody writes to them."""
    check_regular(path)
    try:
        return np.asarray(np.memmap(path, np.uint8, mode="c"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
