"""The attention half of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.cache.kv import KeyValue
from ramet.ops import Linear, Ops
from ramet.round import Queries, Stream


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Projections, per-head norms and the shape of one attention layer.

    q_proj [Hq * D, C], kv_proj [2 Hk * D, C], o_proj [C, Hq * D]; q_norm and k_norm [D] where the family has them;
    window 0 sees all.
    """

    q_proj: Linear
    kv_proj: Linear
    o_proj: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    n_heads: int
    n_kv_heads: int
    eps: float
    scale: float
    window: int
    ops: Ops

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        rotation: torch.Tensor,
        stream: Stream,
        queries: Queries,
        pages: KeyValue | None,
    ) -> torch.Tensor:
        """x [T, C] normed, residual [N, C] and rotation of all rows; returns [N, C], the rows of `queries`."""
        whole = queries is stream.every
        rows = queries.rows.long()
        _, k, v = self.ops.rotate(self.kv_proj(x), rotation, 0, self.n_kv_heads, None, self.k_norm, self.eps)
        if pages is not None:
            pages.write(k, v, stream.kept_rows, stream.kept_slots)
        if not len(rows):
            return residual
        q, _, _ = self.ops.rotate(
            self.q_proj(x if whole else x[rows]), rotation if whole else rotation[rows],
            self.n_heads, 0, self.q_norm, None, self.eps,
        )  # fmt: skip
        seen = self.ops.attention(q, k, v, stream, queries, pages, scale=self.scale, window=self.window)
        return self.o_proj.add(seen.flatten(1), residual)
