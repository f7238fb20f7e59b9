"""Reading the vocabulary on the CPU: only the columns asked for, and a logsumexp streamed over the vocabulary."""

from __future__ import annotations

from ctypes import c_float

import numpy as np
import numpy.typing as npt
import torch

from ramet.ops.head import reference
from ramet.ops.head.reference import Sampled, Vocabulary, capped, is_cut, part_of, sampled
from ramet.ops.linear.reference import PlainLinear
from ramet.ops.linear.tiles import TiledLinear
from ramet.ops.native import Library, library, pointer
from ramet.round import Stream
from ramet.tree import Sampling

_CHUNK = 8192  # entries of the vocabulary multiplied at a time on the plain path
_GATHERED = 4096  # columns gathered at a time there
_HELD = 64  # rows whose logits are held for all entries
_COLDEST, _HOTTEST = 1e-20, 1e20  # temperatures beyond are as good as these, and have an inverse

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


def sample(
    hidden: torch.Tensor, rows: torch.Tensor, vocabulary: Vocabulary, sampling: Sampling, *, excluded: int = -1,
    softcap: float = 0.0,
) -> Sampled:  # fmt: skip
    """As `reference.sample`. No logits are held, but those of a few rows that are drawn from a part of the
    vocabulary."""
    weight = vocabulary.weight
    assert len(weight) > (0 <= excluded < len(weight))
    found = library() if hidden.dtype == weight.dtype and weight.dtype in (torch.bfloat16, torch.float32) else None
    hidden = hidden[rows.long()].contiguous()
    if found is None:
        return plain_sample(hidden, weight, sampling, excluded, softcap)
    n = len(rows)
    made = Sampled(torch.empty(n, dtype=torch.int64), torch.empty(n), torch.empty(n))
    held = n if np.count_nonzero(is_cut(sampling)) <= _HELD else _HELD
    for at in range(0, n, max(1, held)):
        own = slice(at, at + held)
        part = Sampled(made.tokens[own], made.logprobs[own], made.entropy[own])
        _draw(found, hidden[own], weight, part_of(sampling, own), excluded, softcap, part)
    return made


def _draw(
    found: Library, hidden: torch.Tensor, weight: torch.Tensor, sampling: Sampling, excluded: int, softcap: float,
    made: Sampled,
) -> None:  # fmt: skip
    """Write what is drawn for the rows hidden [N, C], by the kernels in `found`."""
    cut = is_cut(sampling)
    which = np.flatnonzero(cut)
    warm = (sampling.temperatures > 0) & ~cut
    scales = torch.from_numpy(np.where(warm, 1 / sampling.temperatures.clip(_COLDEST, _HOTTEST), 0).astype(np.float32))
    uniforms = torch.from_numpy(np.ascontiguousarray(sampling.uniforms, np.float32))
    places = torch.from_numpy(np.where(cut, np.cumsum(cut) - 1, -1).astype(np.int32))
    logits = torch.empty(len(which), len(weight))
    found.functions.ramet_sample(
        pointer(hidden), pointer(weight), *hidden.shape, len(weight), c_float(softcap), excluded, pointer(scales),
        pointer(uniforms), pointer(places), pointer(logits), pointer(made.tokens), pointer(made.logprobs),
        pointer(made.entropy), int(hidden.dtype == torch.bfloat16), torch.get_num_threads(),
    )  # fmt: skip
    if len(which):
        _draw_cut(found, logits, part_of(sampling, which), which, excluded, made)


def _draw_cut(
    found: Library, logits: torch.Tensor, sampling: Sampling, which: npt.NDArray[np.int64], excluded: int, made: Sampled
) -> None:
    """Put into `made`, for the rows `which`, what is drawn from a part of the vocabulary by logits [N, V]."""
    tokens, below = torch.empty(len(which), dtype=torch.int64), torch.empty(len(which))
    numbers = (sampling.temperatures, sampling.uniforms, sampling.top_p)
    how = [torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x in numbers]
    top_k = torch.from_numpy(np.ascontiguousarray(sampling.top_k, np.int32))
    found.functions.ramet_cut(
        pointer(logits), *logits.shape, excluded, *map(pointer, how), pointer(top_k), pointer(tokens), pointer(below),
        torch.get_num_threads(),
    )  # fmt: skip
    made.tokens[which] = tokens
    made.logprobs[which] += below


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


def plain_sample(
    hidden: torch.Tensor, weight: torch.Tensor, sampling: Sampling, excluded: int, softcap: float
) -> Sampled:
    """As `sample`, of hidden [N, C], in torch. One row at a time, but for the product."""
    parts: list[tuple[torch.Tensor, ...]] = []
    products = [TiledLinear(PlainLinear, part.float(), None) for part in weight.split(_CHUNK)]
    for at in range(0, len(hidden), _HELD):
        logits = torch.cat([product(hidden[at : at + _HELD].float()) for product in products], 1)
        rows = (capped(row[None], softcap) for row in logits)
        parts += [sampled(row, part_of(sampling, slice(i, i + 1)), excluded) for i, row in enumerate(rows, at)]
    if not parts:
        return Sampled(torch.empty(0, dtype=torch.int64), torch.empty(0), torch.empty(0))
    tokens, logprobs, entropy = (torch.cat(x) for x in zip(*parts, strict=True))
    return Sampled(tokens, logprobs, entropy)
