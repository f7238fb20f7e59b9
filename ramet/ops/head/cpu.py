"""Reading the vocabulary on the CPU: only the columns asked for, and a logsumexp streamed over the vocabulary."""

from __future__ import annotations

from ctypes import c_float

import torch

from ramet.ops.head import reference
from ramet.ops.head.reference import Vocabulary, capped
from ramet.ops.linear.reference import PlainLinear
from ramet.ops.linear.tiles import TiledLinear
from ramet.ops.native import Library, library, pointer
from ramet.round import Stream

_CHUNK = 8192  # entries of the vocabulary multiplied at a time on the plain path
_GATHERED = 4096  # columns gathered at a time there

draw = reference.draw  # plain torch everywhere


def prepare(weight: torch.Tensor) -> Vocabulary:
    """As `reference.prepare`. The weight is read as it is, never packed nor copied whole."""
    return Vocabulary(weight.detach().contiguous())


def read(
    hidden: torch.Tensor, vocabulary: Vocabulary, stream: Stream, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.read`. What is read of a row has the same bits whatever rows are read with it.

    Raises IndexError when a column lies outside the vocabulary.
    """
    weight = vocabulary.weight
    row = torch.repeat_interleave(stream.read_index, stream.offsets.diff())
    if len(stream.columns) and not 0 <= int(stream.columns.min()) <= int(stream.columns.max()) < len(weight):
        raise IndexError("a column lies outside the vocabulary")
    found = library() if hidden.dtype == weight.dtype and weight.dtype in (torch.bfloat16, torch.float32) else None
    hidden = hidden.contiguous()
    due = stream.normalize.nonzero()[:, 0]
    norms = torch.full((len(hidden),), float("nan"))
    if found is None:
        logits = plain_columns(hidden, weight, row, stream.columns, softcap)
        norms[due] = plain_logsumexp(hidden[due], weight, softcap)
    else:
        logits = columns(found, hidden, weight, row, stream.columns, softcap)
        norms[due] = logsumexp(found, hidden[due], weight, softcap)
    return logits, norms[stream.read_index.long()]


def columns(
    found: Library, hidden: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, entries: torch.Tensor,
    softcap: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """hidden[row] . weight[entries], float32 [columns], by the kernel in `found`; row and entries int32."""
    out = torch.empty(len(entries))
    found.functions.ramet_columns(
        pointer(hidden), pointer(weight), hidden.shape[1], pointer(row), pointer(entries), len(entries),
        c_float(softcap), pointer(out), int(hidden.dtype == torch.bfloat16), torch.get_num_threads(),
    )  # fmt: skip
    return out


def logsumexp(found: Library, hidden: torch.Tensor, weight: torch.Tensor, softcap: float = 0.0) -> torch.Tensor:
    """Over the vocabulary, float32 [rows], by the kernel in `found`."""
    out = torch.empty(len(hidden))
    if len(hidden):
        found.functions.ramet_logsumexp(
            pointer(hidden), pointer(weight), *hidden.shape, len(weight), c_float(softcap), pointer(out),
            int(hidden.dtype == torch.bfloat16), torch.get_num_threads(),
        )  # fmt: skip
    return out


def plain_columns(
    hidden: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, entries: torch.Tensor, softcap: float = 0.0
) -> torch.Tensor:
    """As `columns`, in torch."""
    out = torch.empty(len(entries))
    for at in range(0, len(entries), _GATHERED):
        part = slice(at, at + _GATHERED)
        out[part] = (hidden[row[part].long()].float() * weight[entries[part].long()].float()).sum(-1)
    return capped(out, softcap)


def plain_logsumexp(hidden: torch.Tensor, weight: torch.Tensor, softcap: float = 0.0) -> torch.Tensor:
    """As `logsumexp`, in torch; not by its logaddexp, which gives the last elements of a tensor other bits."""
    wide = hidden.float()
    parts = (TiledLinear(PlainLinear, part.float(), None)(wide) for part in weight.split(_CHUNK))
    return torch.stack([capped(part, softcap).logsumexp(-1) for part in parts], -1).logsumexp(-1)
