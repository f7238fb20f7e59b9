"""The check for NaN and infinity in a round's results, once, as they come from the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ramet.engine.batch import Batch
from ramet.ops.head.reference import Sampled
from ramet.round import Round
from ramet.tree import WHOLE, Read, Reads, Segment, Tree
from ramet.units import Unit

_N_PROBED = 16  # rows


class NotFinite(Exception):
    """Logits of a round are NaN or infinite. Never leaves the engine."""


def check(packed: Round, reads: Sequence[Reads], logsumexp: torch.Tensor, sampled: Sampled | None) -> None:
    """Raise NotFinite where a requested number is NaN or infinite: a logit, a sum over the vocabulary, or the
    log-probability of a drawn id, which is so where any logit of its row is."""
    due = packed["normalize"][packed["read_index"]] > 0
    found = [logsumexp.float().cpu().numpy()[: len(due)][due]] if len(logsumexp) else []
    found += [each.logits for each in reads]
    found += [stepped.logprobs[:, 0] for each in reads for stepped in each.stepped]
    found += [] if sampled is None else [sampled.logprobs.numpy()]
    if not all(np.isfinite(numbers).all() for numbers in found):
        raise NotFinite("logits are not finite")


def probe(vocab_size: int, *, has_canvases: bool) -> Batch:
    """A round of a few ids from the whole vocabulary: where its logits are not finite either, no request is to
    blame."""
    ids = np.linspace(0, vocab_size - 1, _N_PROBED, dtype=np.int32)
    read = [Read([int(ids[0])])]
    trunk = Segment(ids, reads=() if has_canvases else read)
    segments = [trunk, Segment(ids, 0, WHOLE, read)] if has_canvases else [trunk]
    unit = Unit(Tree.of(segments))
    return Batch(units=[unit], n_tokens=unit.tree.n_tokens)
