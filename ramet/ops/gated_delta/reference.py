"""The gated delta rule over a stream of trees, token by token, and the norm and gate of its rows, in plain torch: the
specification of the others here.

With S the state, float32 [Dk, Dv], and q and k of length 1 (q then divided by sqrt(Dk)), a row does, in this order:
S = decay * S, then S = S + k (beta (v - S^T k))^T, and returns S^T q (Yang et al. 2025, "Gated Delta Networks").
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ramet.cache.state import Recurrent
from ramet.ops.shape import takes_all
from ramet.round import Stream

CHUNK = 64  # rows: a piece that is cut at a multiple of it, from its start, has the bits of the uncut one (native.py)
EPSILON = 1e-6


takes = takes_all


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
    """q and k [T, Hk, Dk], v [T, Hv, Dv] (Hv a multiple of Hk; value head h uses key head h // (Hv // Hk)).

    decay = exp(rate * softplus(a + dt_bias)) and beta = sigmoid(b), with a and b [T, Hv], rate (below 0) and dt_bias
    float32 [Hv]. A piece begins from its slot of states.state, its parent's final state, or zeros, and writes its
    final state where `piece_to` says. All in float32 (float64 inputs stay float64).

    Returns `gated_norm` of each row [T, Hv, Dv], in v's dtype; gate [T, Hv, Dv] in v's dtype, weight float32 [Dv].
    """
    wide, group = torch.promote_types(q.dtype, torch.float32), v.shape[1] // k.shape[1]
    q, k = (unit(x.to(wide)).repeat_interleave(group, 1) for x in (q, k))
    q, values = q * q.shape[2] ** -0.5, v.to(wide)
    decay, beta = log_decay(a.to(wide), rate, dt_bias).exp(), b.to(wide).sigmoid()
    out = torch.empty_like(values)
    walk = Walk(stream, states, (v.shape[1], k.shape[2], v.shape[2]), wide)
    for pieces in walk.levels:
        state = walk.begin(pieces)
        for t in range(walk.lengths[pieces[0]]):
            rows = [walk.starts[p] + t for p in pieces if walk.lengths[p] > t]  # the longest come first
            now = state[: len(rows)]
            now *= decay[rows][..., None, None]
            missing = beta[rows][..., None] * (values[rows] - _read(now, k[rows]))
            now += k[rows][..., :, None] * missing[..., None, :]
            out[rows] = _read(now, q[rows])
        walk.end(pieces, state)
    return gated_norm(out.to(v.dtype), gate, weight, eps)


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps), rounded to x's dtype, then times weight and silu(gate), rounded again (transformers'
    Qwen3_5RMSNormGated)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return (weight * normed * functional.silu(gate.to(wide.dtype))).to(x.dtype)


def _read(state: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """S^T x: [..., Dk, Dv] and [..., Dk] to [..., Dv]."""
    return (state * at[..., None]).sum(-2)


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length 1."""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def log_decay(a: torch.Tensor, rate: torch.Tensor, dt_bias: torch.Tensor) -> torch.Tensor:
    return rate.to(a.dtype) * functional.softplus(a + dt_bias.to(a.dtype))


class Walk:
    """Pieces level by level, with the states that go from one level to the next.

    levels: the pieces by depth, the longest first; starts, lengths: of every piece, in rows.
    """

    def __init__(
        self, stream: Stream, states: Recurrent | None, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        self.starts, self.lengths = stream.piece_starts.tolist(), stream.piece_lengths.tolist()
        self._parents, self._from, self._to = (
            x.tolist() for x in (stream.piece_parents, stream.piece_from, stream.piece_to)
        )
        self._followed = set(self._parents)
        self._states, self._final = states, dict[int, torch.Tensor]()
        self._zeros = torch.zeros(shape, dtype=dtype, device=stream.piece_starts.device)
        self.levels = self._by_depth()

    def _by_depth(self) -> list[list[int]]:
        levels: list[list[int]] = []
        depths: list[int] = []
        for piece, parent in enumerate(self._parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if depths[piece] == len(levels):
                levels.append([])
            levels[depths[piece]].append(piece)
        return [sorted(level, key=lambda p: -self.lengths[p]) for level in levels]

    def begin(self, pieces: list[int]) -> torch.Tensor:
        """The states that these begin from, [n, Hv, Dk, Dv]."""
        return torch.stack([self._initial(p) for p in pieces])

    def _initial(self, piece: int) -> torch.Tensor:
        if self._from[piece] >= 0:
            assert self._states is not None
            return self._states.state[self._from[piece]].to(self._zeros.dtype)
        return self._final[self._parents[piece]] if self._parents[piece] >= 0 else self._zeros

    def end(self, pieces: list[int], state: torch.Tensor) -> None:
        """Keep their final states, as far as they are needed."""
        for piece, own in zip(pieces, state, strict=True):
            if piece in self._followed:
                self._final[piece] = own
            if self._to[piece] >= 0:
                assert self._states is not None
                self._states.state[self._to[piece]] = own.to(self._states.state.dtype)
