"""The causal convolution over a stream of trees, in plain torch: the specification of the other files here.

A row's predecessors are those of its own path: rows of its piece, of the pieces above, then what the slot that the
path begins from holds, then zeros.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ramet.cache.state import Recurrent
from ramet.ops.shape import takes_all
from ramet.round import Stream

takes = takes_all


def causal_conv(x: torch.Tensor, weight: torch.Tensor, stream: Stream, states: Recurrent | None) -> torch.Tensor:
    """x [T, C], weight [C, W]: silu of the sum over j < W of weight[:, W-1-j] times the row j before.

    Returns [T, C] in x's dtype; sums in float32 (float64 inputs stay float64). Writes the last W-1 inputs of the path
    of each piece with a `piece_to` into states.window.
    """
    width, wide = weight.shape[1], torch.promote_types(x.dtype, torch.float32)
    inputs, before = _inputs(x, width, stream, states)
    paths = [torch.arange(len(x), device=x.device)]  # paths[j]: the input j before each row
    for _ in range(width - 1):
        paths.append(before[paths[-1]])
    total = torch.zeros(x.shape, dtype=wide, device=x.device)
    for j, path in enumerate(paths):
        total += inputs[path].to(wide) * weight[:, width - 1 - j].to(wide)
    kept = stream.piece_to >= 0
    if states is not None and bool(kept.any()):
        last = (stream.piece_starts + stream.piece_lengths - 1)[kept].long()
        newest_first = torch.stack([inputs[path[last]] for path in paths[: width - 1]], 1)
        states.window[stream.piece_to[kept].long()] = newest_first.flip(1).to(states.window.dtype)
    return functional.silu(total).to(x.dtype)


def _inputs(x: torch.Tensor, width: int, stream: Stream, states: Recurrent | None) -> tuple[torch.Tensor, torch.Tensor]:
    """All that may be summed, [N, C]: rows, windows begun from, a row of zeros; and which one precedes each, [N]."""
    begun = (stream.piece_from >= 0).nonzero().flatten()
    n_rows, n_zero = len(x), len(x) + len(begun) * (width - 1)
    held = x[:0]
    if len(begun):
        assert states is not None
        held = states.window[stream.piece_from[begun].long()].flatten(0, 1).to(x.dtype)
    before = torch.arange(-1, n_zero, device=x.device)
    before[n_zero] = n_zero
    oldest = n_rows + torch.arange(len(begun), device=x.device) * (width - 1)
    before[oldest] = n_zero
    starts, parents = stream.piece_starts.long(), stream.piece_parents.long()
    first = torch.full_like(starts, n_zero)
    first[parents >= 0] = (starts + stream.piece_lengths - 1)[parents[parents >= 0]]
    first[begun] = oldest + width - 2
    before[starts] = first
    return torch.cat((x, held, x.new_zeros(1, x.shape[1]))), before
