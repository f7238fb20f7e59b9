"""Reading the vocabulary in plain torch: the specification of the other files here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ramet.ops.shape import takes_all
from ramet.round import Stream
from ramet.tree import Sampling

_ROWS, _ENTRIES = 64, 8192  # of a product with the vocabulary, whose results are held for all entries
_FEW = 1024  # of the largest, which are quicker to find than all are to sort


takes = takes_all


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The output embedding: weight [V, C], as `prepare` was given it, so that the input embedding may share it."""

    weight: torch.Tensor


def prepare(weight: torch.Tensor) -> Vocabulary:
    """Prepare weight [V, C] once at load."""
    return Vocabulary(weight)


def read(
    hidden: torch.Tensor, vocabulary: Vocabulary, stream: Stream, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden [N, C] of the read queries. With softcap > 0 every logit is softcap * tanh(logit / softcap).

    Returns the logits [columns] of every read's columns and the logsumexp [R] over the vocabulary, both float32;
    NaN where the read's row did not ask for it.
    """
    logits = capped(hidden.float() @ vocabulary.weight.float().T, softcap)
    row = torch.repeat_interleave(stream.read_index.long(), stream.offsets.diff().long())
    norms = logits.logsumexp(-1).masked_fill(stream.normalize == 0, float("nan"))
    return logits[row, stream.columns.long()], norms[stream.read_index.long()]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """As tree.Stepped, on the device: tokens [N], best [N, n] and their logprobs [N, n], entropy [N]; soft [N, C], the
    embeddings that are expected of the drawn, in the embedding's dtype."""

    tokens: torch.Tensor
    best: torch.Tensor
    logprobs: torch.Tensor
    entropy: torch.Tensor
    soft: torch.Tensor | None


def draw(
    hidden: torch.Tensor, vocabulary: Vocabulary, uniforms: torch.Tensor, *, temperature: float, n_best: int,
    embedding: torch.Tensor | None = None, softcap: float = 0.0,
) -> Drawn:  # fmt: skip
    """Draw an id for each row of hidden [N, C] from softmax(logits / temperature): the first whose cumulative
    probability, in the order of ids, exceeds the row's number of uniforms [N].

    embedding [V, C]: what soft is made of, with probabilities rounded as transformers does (DiffusionGemma). A few rows
    at a time, in float32; what a row gets depends on those that it is given with alone.
    """
    blocks = zip(hidden.split(_ROWS), uniforms.split(_ROWS), strict=True)
    parts = [_draw(_logits(rows, vocabulary, softcap), u, temperature, n_best, embedding) for rows, u in blocks]
    tokens, best, logprobs, entropy, soft = zip(*parts, strict=True)
    softs = None if embedding is None else torch.cat(soft)
    return Drawn(torch.cat(tokens), torch.cat(best), torch.cat(logprobs), torch.cat(entropy), softs)


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What was drawn for N rows, on the device: tokens [N] int64; of the distribution at temperature 1, over the
    vocabulary less the excluded id: logprobs [N] of what was drawn, and entropy [N], in nats, float32."""

    tokens: torch.Tensor
    logprobs: torch.Tensor
    entropy: torch.Tensor


def sample(
    hidden: torch.Tensor, rows: torch.Tensor, vocabulary: Vocabulary, sampling: Sampling, *, excluded: int = -1,
    softcap: float = 0.0,
) -> Sampled:  # fmt: skip
    """Draw an id for each of the rows [N] (int32 or int64, on the device) of hidden [R, C].

    At temperature 0 the likeliest, of equal ones the lowest; else as `drawn`. The excluded id (-1: there is none) is
    never drawn. What a row gets depends on no other row. Of a row with NaN the id is any other than the excluded, and
    the rest NaN.
    """
    n_entries = len(vocabulary.weight)
    assert n_entries > (0 <= excluded < n_entries)
    parts = []
    for at in range(0, max(1, len(rows)), _ROWS):
        own = slice(at, at + _ROWS)
        logits = _logits(hidden[rows[own].long()], vocabulary, softcap)
        parts.append(sampled(logits, part_of(sampling, own), excluded))
    tokens, logprobs, entropy = (torch.cat(x) for x in zip(*parts, strict=True))
    return Sampled(tokens, logprobs, entropy)


def sampled(logits: torch.Tensor, sampling: Sampling, excluded: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `sample` makes of logits [N, V], in which the excluded id's are overwritten."""
    if 0 <= excluded < logits.shape[1]:
        logits[:, excluded] = float("-inf")
    top, tokens = logits.max(-1)
    warm = np.flatnonzero(sampling.temperatures > 0)
    if len(warm):
        which = torch.from_numpy(warm).to(logits.device, non_blocking=True)
        tokens[which] = drawn(logits[which], part_of(sampling, warm))
    tokens = tokens.masked_fill(tokens == excluded, int(excluded == 0))  # of rows with NaN
    shifted = logits - top[:, None]
    weights = shifted.exp()
    total = weights.sum(-1)
    entropy = total.log() - torch.where(weights > 0, weights * shifted, weights).sum(-1) / total
    return tokens, shifted.gather(1, tokens[:, None])[:, 0] - total.log(), entropy


def drawn(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Of logits [N, V], with temperatures above 0: the first id [N] whose cumulative probability, in the order of ids,
    exceeds the row's uniform, of softmax(logits / temperature) cut to the top_k likeliest, and then to the likeliest
    that make up top_p, one at least. What equals the last of these is kept too.

    Probabilities are whole numbers of 2^-40 of the largest, so that sums have the same bits in any order.
    """
    temperatures, uniforms = (_beside(logits, x).double() for x in (sampling.temperatures, sampling.uniforms))
    shifted = logits.double() - logits.max(-1, keepdim=True).values
    weights = ((shifted / temperatures).exp() * 2.0**40).round().nan_to_num(0.0).long()
    if is_cut(sampling).any():
        weights = _cut(logits, weights, sampling)
    cumulative = weights.cumsum(-1)
    passed = cumulative.double() > uniforms * cumulative[:, -1:]
    return passed.to(torch.int8).argmax(-1)


def _cut(logits: torch.Tensor, weights: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The weights [N, V] without those of ids that are not among the likeliest."""
    n_entries = logits.shape[1]
    top_k = np.where(sampling.top_k > 0, sampling.top_k, n_entries).clip(max=n_entries).astype(np.int64)
    n = int(top_k.max())
    values, ids = logits.topk(n) if n <= _FEW else logits.sort(dim=-1, descending=True)
    last = values.gather(1, _beside(logits, top_k - 1))
    weights = weights.masked_fill(logits < last, 0)
    if (sampling.top_p < 1).any():
        ordered = weights.gather(1, ids)
        top_p = _beside(logits, sampling.top_p).double()
        within = (ordered.cumsum(-1) - ordered).double() < top_p * weights.sum(-1, keepdim=True)
        n_within = within.sum(-1, keepdim=True).clamp(min=1)
        weights = weights.masked_fill(logits < values.gather(1, n_within - 1), 0)
    return weights


def _beside(logits: torch.Tensor, numbers: npt.NDArray[np.generic]) -> torch.Tensor:
    """[N, 1] where the logits are."""
    return torch.from_numpy(numbers).to(logits.device, non_blocking=True)[:, None]


def is_cut(sampling: Sampling) -> npt.NDArray[np.bool_]:
    """[N] whether a row is drawn from a part of the vocabulary."""
    return (sampling.temperatures > 0) & ((sampling.top_k > 0) | (sampling.top_p < 1))


def part_of(sampling: Sampling, which: slice | npt.NDArray[np.int64]) -> Sampling:
    return Sampling(
        sampling.temperatures[which], sampling.uniforms[which], sampling.top_p[which], sampling.top_k[which]
    )


def _logits(hidden: torch.Tensor, vocabulary: Vocabulary, softcap: float) -> torch.Tensor:
    """[N, V] float32."""
    out = torch.empty(len(hidden), len(vocabulary.weight), device=hidden.device)
    hidden = hidden.float()
    for entries, part in zip(vocabulary.weight.split(_ENTRIES), out.split(_ENTRIES, 1), strict=True):
        torch.mm(hidden, entries.float().T, out=part)
    return capped(out, softcap)


def _draw(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, n_best: int, embedding: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    best = _best(logits, n_best)
    logprobs = logits.gather(1, best) - logits.logsumexp(-1, keepdim=True)
    tempered = logits / temperature
    p = tempered.softmax(-1)
    entropy = tempered.logsumexp(-1) - (p * tempered).sum(-1)
    cumulative = p.cumsum(-1)
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]
    tokens = tokens.clamp_(max=logits.shape[1] - 1)
    if embedding is None:
        return tokens, best, logprobs, entropy, tokens
    expected = tempered.to(embedding.dtype).softmax(-1, dtype=torch.float32).to(embedding.dtype)
    return tokens, best, logprobs, entropy, expected @ embedding


def _best(logits: torch.Tensor, n: int) -> torch.Tensor:
    """[N, n], descending; of equal ones the lower id first."""
    if n == 1:
        return logits.argmax(-1, keepdim=True)
    ids = logits.topk(n).indices.sort(-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)


def capped(logits: torch.Tensor, softcap: float) -> torch.Tensor:
    """softcap * tanh(logits / softcap), or the logits as they are where softcap is 0."""
    return softcap * torch.tanh(logits / softcap) if softcap else logits
