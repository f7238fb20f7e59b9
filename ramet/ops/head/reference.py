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


def read(hidden: torch.Tensor, vocabulary: Vocabulary, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden [N, C] of the read queries.

    Returns the logits [columns] of every read's columns and the logsumexp [R] over the vocabulary, both float32;
    NaN where the read's row did not ask for it.
    """
    logits = hidden.float() @ vocabulary.weight.float().T
    row = torch.repeat_interleave(stream.read_index.long(), stream.offsets.diff().long())
    norms = logits.logsumexp(-1).masked_fill(stream.normalize == 0, float("nan"))
    return logits[row, stream.columns.long()], norms[stream.read_index.long()]
