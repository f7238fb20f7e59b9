"""Reading the vocabulary on the CPU in plain torch: the requested columns alone, and a logsumexp streamed over it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ramet.ops.head import reference
from ramet.ops.head.reference import Sampled, Vocabulary, capped, part_of, sampled
from ramet.ops.linear.reference import PlainLinear
from ramet.ops.linear.tiles import TiledLinear
from ramet.ops.shape import takes_all
from ramet.round import Stream
from ramet.tree import Sampling

_CHUNK = 8192  # entries of the vocabulary multiplied at a time
_GATHERED = 4096  # columns gathered at a time
_HELD = 64  # rows whose logits are held for all entries

draw, takes = reference.draw, takes_all


def prepare(weight: torch.Tensor) -> Vocabulary:
    """As `reference.prepare`. The weight is read as it is, never packed nor copied whole."""
    return Vocabulary(weight.detach().contiguous())


def read(
    hidden: torch.Tensor, vocabulary: Vocabulary, stream: Stream, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.read`. What is read of a row has the same bits whatever rows are read with it.

    Raises IndexError when a column lies outside the vocabulary.
    """
    return read_by(columns, logsumexp, hidden, vocabulary, stream, softcap)


def read_by(
    columns: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor],
    logsumexp: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor],
    hidden: torch.Tensor,
    vocabulary: Vocabulary,
    stream: Stream,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `read`, by functions such as those below."""
    weight = vocabulary.weight
    row = torch.repeat_interleave(stream.read_index, stream.offsets.diff())
    if len(stream.columns) and not 0 <= int(stream.columns.min()) <= int(stream.columns.max()) < len(weight):
        raise IndexError("a column lies outside the vocabulary")
    hidden = hidden.contiguous()
    due = stream.normalize.nonzero()[:, 0]
    norms = torch.full((len(hidden),), float("nan"))
    logits = columns(hidden, weight, row, stream.columns, softcap)
    norms[due] = logsumexp(hidden[due], weight, softcap)
    return logits, norms[stream.read_index.long()]


def columns(
    hidden: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, entries: torch.Tensor, softcap: float = 0.0
) -> torch.Tensor:
    """hidden[row] . weight[entries], float32 [columns]; row and entries int32."""
    out = torch.empty(len(entries))
    for at in range(0, len(entries), _GATHERED):
        part = slice(at, at + _GATHERED)
        out[part] = (hidden[row[part].long()].float() * weight[entries[part].long()].float()).sum(-1)
    return capped(out, softcap)


def logsumexp(hidden: torch.Tensor, weight: torch.Tensor, softcap: float = 0.0) -> torch.Tensor:
    """Over the vocabulary, float32 [rows]. torch's logaddexp would give a tensor's last elements other bits."""
    wide = hidden.float()
    parts = (TiledLinear(PlainLinear, part.float(), None)(wide) for part in weight.split(_CHUNK))
    return torch.stack([capped(part, softcap).logsumexp(-1) for part in parts], -1).logsumexp(-1)


def sample(
    hidden: torch.Tensor, rows: torch.Tensor, vocabulary: Vocabulary, sampling: Sampling, *, excluded: int = -1,
    softcap: float = 0.0,
) -> Sampled:  # fmt: skip
    """As `reference.sample`. One row at a time, but for the product."""
    weight = vocabulary.weight
    assert len(weight) > (0 <= excluded < len(weight))
    hidden = hidden[rows.long()].contiguous()
    parts: list[tuple[torch.Tensor, ...]] = []
    products = [TiledLinear(PlainLinear, part.float(), None) for part in weight.split(_CHUNK)]
    for at in range(0, len(hidden), _HELD):
        logits = torch.cat([product(hidden[at : at + _HELD].float()) for product in products], 1)
        each = (capped(row[None], softcap) for row in logits)
        parts += [sampled(row, part_of(sampling, slice(i, i + 1)), excluded) for i, row in enumerate(each, at)]
    if not parts:
        return Sampled(torch.empty(0, dtype=torch.int64), torch.empty(0), torch.empty(0))
    tokens, logprobs, entropy = (torch.cat(x) for x in zip(*parts, strict=True))
    return Sampled(tokens, logprobs, entropy)
