"""Reading the vocabulary in plain torch: the specification of the other files here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.round import Stream


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


def capped(logits: torch.Tensor, softcap: float) -> torch.Tensor:
    """softcap * tanh(logits / softcap), or the logits as they are where softcap is 0."""
    return softcap * torch.tanh(logits / softcap) if softcap else logits
