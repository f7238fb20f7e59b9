"""Reading the vocabulary in plain torch: the specification of the other files here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.round import Stream

_ROWS, _ENTRIES = 64, 8192  # of a product with the vocabulary, whose results are held for all entries


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
