"""Numbers of quantised blocks. Those of the kinds that most GGUF files are made of have the bits of the gguf package's
own reading, in a tenth of its time.

Each kind's function takes blocks, uint8 [B, bytes], and fills float32 [B, numbers]. Scales are 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Kind


def dequantize(rows: npt.NDArray[np.uint8], kind: Any, out: torch.Tensor) -> None:
    """Fill `out`, float32 and contiguous, with the numbers of whole rows of a kind of gguf.GGMLQuantizationType. Raises
    NotImplementedError for a kind that the gguf package cannot read."""
    if kind in _OWN:
        size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        _OWN[kind](torch.from_numpy(rows).view(-1, n_bytes), out.view(-1, size))
        return
    with np.errstate(invalid="ignore", over="ignore"):  # a broken scale is named by who reads the tensor
        out.copy_(torch.from_numpy(gguf.quants.dequantize(rows, kind)).view(out.shape))


def q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Eight groups of 32 numbers of 4 bits, each with a scale and a minimum of 6 bits."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = _halves(blocks, 0) * torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), 1)
    minima = _halves(blocks, 2) * torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), 1)
    _nibbles(blocks[:, 16:], out.view(-1, 4, 2, 32))
    out.view(-1, 8, 32).mul_(scales[:, :, None]).sub_(minima[:, :, None])


def q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Sixteen groups of 16 numbers of 6 bits, each with a scale of 8 bits; the upper two bits lie apart."""
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    upper = blocks[:, 128:192].contiguous().view(-1, 2, 32)
    quants = torch.empty(len(blocks), 2, 4, 32, dtype=torch.uint8)
    _nibbles(blocks[:, :128], quants.view(-1, 2, 2, 64))
    for place, bits in enumerate(((upper & 3) << 4, (upper & 12) << 2, upper & 48, (upper & 192) >> 2)):
        quants[:, :, place] |= bits
    out.view(quants.shape).copy_(quants.sub_(32).view(torch.int8))
    out.view(-1, 16, 16).mul_(scales[:, :, None])


def q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """32 numbers of 5 bits; the fifth ones lie apart."""
    fifth = torch.from_numpy(np.unpackbits(blocks[:, 2:6].numpy(), axis=1, bitorder="little"))
    quants = torch.empty(len(blocks), 32, dtype=torch.uint8)
    _nibbles(blocks[:, 6:], quants.view(-1, 1, 2, 16))
    quants |= fifth << 4
    out.copy_(quants.sub_(16).view(torch.int8)).mul_(_halves(blocks, 0))


def q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """32 numbers of 8 bits."""
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(_halves(blocks, 0))


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The 16-bit float at a byte of each block [B, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """The lower four bits of each of `packed` [B, bytes], and then the upper ones, in turns of a last dimension:
    out [B, G, 2, N]."""
    packed = packed.contiguous().view(len(out), -1, out.shape[-1])
    out[:, :, 0].copy_(packed & 15)
    out[:, :, 1].copy_(packed >> 4)


_OWN: dict[Any, Callable[[torch.Tensor, torch.Tensor], None]] = {
    Kind.Q4_K: q4_k, Kind.Q5_0: q5_0, Kind.Q6_K: q6_k, Kind.Q8_0: q8_0,
}  # fmt: skip
