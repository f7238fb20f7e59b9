"""The gated delta rule on the CPU in plain torch, faster than the reference: chunks of pieces of one depth are one
batch. Equal to rounding; no bits are promised."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.cache.state import Recurrent
from ramet.ops.gated_delta.reference import CHUNK, Walk, gated_norm, log_decay, unit
from ramet.ops.shape import takes_all
from ramet.round import Stream

takes = takes_all
_BATCH = 64  # pieces that are taken at once: what is held for them stays within some 100 MB


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    rate: torch.Tensor,
    dt_bias: torch.Tensor,
    stream: Stream,
    states: Recurrent | None,
    *,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """As `reference.gated_delta`."""
    wide, group = torch.promote_types(q.dtype, torch.float32), v.shape[1] // k.shape[1]
    q, k = (unit(x.to(wide)).repeat_interleave(group, 1) for x in (q, k))
    q, values = q * q.shape[2] ** -0.5, v.to(wide)
    gates = torch.stack((log_decay(a.to(wide), rate, dt_bias), b.to(wide).sigmoid()), -1)
    out = torch.empty(v.shape, dtype=v.dtype)
    walk = Walk(stream, states, (v.shape[1], k.shape[2], v.shape[2]), wide)
    for level in walk.levels:
        for pieces in (level[i : i + _BATCH] for i in range(0, len(level), _BATCH)):
            state = walk.begin(pieces)
            for begin in range(0, walk.lengths[pieces[0]], CHUNK):
                rows, own = _rows(walk, [p for p in pieces if walk.lengths[p] > begin], begin)
                chunk = _Chunk(*(x[rows].transpose(1, 2) * own[:, None, :, None] for x in (q, k, values, gates)))
                found, state[: len(rows)] = chunk.step(state[: len(rows)])
                out[rows[own]] = found.transpose(1, 2)[own].to(v.dtype)
            walk.end(pieces, state)
    return gated_norm(out, gate, weight, eps)


def _rows(walk: Walk, pieces: list[int], begin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of these pieces' next chunks, filled up to the longest, and which are their own: [n, C] both."""
    n_rows = torch.tensor([walk.lengths[p] - begin for p in pieces]).clamp(max=CHUNK)
    own = torch.arange(int(n_rows[0]))[None] < n_rows[:, None]
    first = torch.tensor([walk.starts[p] + begin for p in pieces])
    return torch.where(own, first[:, None] + torch.arange(own.shape[1]), first[:, None]), own


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """q, k [n, H, C, Dk] of length 1, v [n, H, C, Dv], gates [n, H, C, 2] (log decay, beta). Zeros change nothing."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gates: torch.Tensor

    def step(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows to return and the next state, from the state [n, H, Dk, Dv] before. native/delta.cpp has the
        formula."""
        total = self.gates[..., 0].double().cumsum(-1)  # float32 would lose the small decays behind a large one
        weight = (total[..., :, None] - total[..., None, :]).tril().exp().to(state.dtype)
        decay, rest = (x.exp().to(state.dtype)[..., None] for x in (total, total[..., -1:] - total))
        beta = self.gates[..., 1:]
        lower = (beta * weight * (self.k @ self.k.mT)).tril(-1)
        right = beta * (self.v - decay * (self.k @ state))
        u = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
        out = decay * (self.q @ state) + (weight * (self.q @ self.k.mT)).tril() @ u
        return out, decay[..., -1:, :] * state + (rest * self.k).mT @ u
