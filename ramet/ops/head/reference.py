"""Reading the vocabulary in plain torch: the specification of the other files here."""

from __future__ import annotations

import torch

from ramet.round import Stream


def read(hidden: torch.Tensor, weight: torch.Tensor, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden [N, C] of the read queries, weight [V, C].

    Returns the logits [columns] of every read's columns and the logsumexp [R] over the vocabulary, both float32;
    NaN where the read's row did not ask for it.
    """
    logits = hidden.float() @ weight.float().T
    row = torch.repeat_interleave(stream.read_index.long(), stream.offsets.diff().long())
    norms = logits.logsumexp(-1).masked_fill(stream.normalize == 0, float("nan"))
    return logits[row, stream.columns.long()], norms[stream.read_index.long()]
