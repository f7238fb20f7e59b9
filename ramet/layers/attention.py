"""The attention half of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.cache.kv import KeyValue
from ramet.layers.output import Output
from ramet.layers.run import Run
from ramet.layers.shape import AttentionShape
from ramet.ops import Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Norm, projections and per-head norms of attention layer number `layer`.

    qkv_proj [(Hq + 2 Hk) * D, C], behind which come Hq * D rows of a gate: one product where all rows have queries,
    keys and values. Else it is None, and there are q_proj [Hq * D, C], twice as many rows with a gate, and kv_proj
    [2 Hk * D, C], half as many where keys are values, None where the keys are another layer's. norm [C]; q_norm and
    k_norm [D] where the family has them. lends: whether later layers read this one's keys and values.
    """

    layer: int
    shape: AttentionShape
    lends: bool
    norm: torch.Tensor
    qkv_proj: Linear | None
    q_proj: Linear | None
    kv_proj: Linear | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Output
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: Run, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C] float32, the rows of `given`; returns [N, C], the rows of `queries`, which are among them."""
        shape, normed = self.shape, self.ops.rms_norm(x, self.norm, self.eps, run.dtype)
        owner = self.layer if shape.keys_of is None else shape.keys_of
        pages = run.store.pages(owner) if run.store is not None else None
        if self.qkv_proj is not None:
            assert given is queries
            q, k, v, gate = self._all(self.qkv_proj(normed), run, pages)
        else:
            k, v = self._keys(normed, run, pages)
            if not len(queries.rows):
                return x[:0]
            if given is not queries:
                x, normed = x.index_select(0, queries.rows), normed.index_select(0, queries.rows)
            q, gate = self._queries(normed, run, queries)
        seen = self.ops.attention(q, k, v, run.stream, queries, pages, scale=shape.scale, window=shape.window)
        seen = seen.flatten(1)
        return self.output(seen if gate is None else self.ops.sigmoid_mul(seen, gate), x, run, queries)

    def _all(
        self, projected: torch.Tensor, run: Run, pages: KeyValue | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Queries [T, Hq, D], keys and values [T, Hk, D], which are kept in pages, and the gate [T, Hq * D], if any."""
        shape, gate = self.shape, None
        if shape.gated:
            width = shape.n_heads * shape.head_dim
            projected, gate = projected[:, :-width], projected[:, -width:]
        rotation = run.rotation(shape.rotary, run.stream.every)
        q, k, v = self.ops.rotate(
            projected, rotation, shape.n_heads, shape.n_kv_heads, self.q_norm, self.k_norm, self.eps,
            None if shape.unit_values else pages, run.stream,
        )  # fmt: skip
        return q, k, self._seen(k, v, run, pages), gate

    def _keys(self, normed: torch.Tensor, run: Run, pages: KeyValue | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [T, Hk, D] of every row: computed, and kept in pages, or another layer's."""
        shape, stream = self.shape, run.stream
        if self.kv_proj is None:
            assert shape.keys_of is not None
            return run.keys[shape.keys_of]
        kv = self.kv_proj(normed)
        if shape.keys_are_values:
            kv = torch.cat((kv, kv), 1)
        rotation = run.rotation(shape.rotary, stream.every)
        _, k, v = self.ops.rotate(
            kv, rotation, 0, shape.n_kv_heads, None, self.k_norm, self.eps, None if shape.unit_values else pages, stream
        )
        return k, self._seen(k, v, run, pages)

    def _seen(self, k: torch.Tensor, v: torch.Tensor, run: Run, pages: KeyValue | None) -> torch.Tensor:
        """The values as rows see them, which together with the keys are left to the layers and rounds that read
        them."""
        if self.shape.unit_values:
            v = self.ops.rms_norm(v, None, self.eps)
            if pages is not None:
                self.ops.keep(pages, k, v, run.stream)
        if self.lends:
            run.keys[self.layer] = k, v
        return v

    def _queries(self, normed: torch.Tensor, run: Run, queries: Queries) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries [N, Hq, D], and the gate [N, Hq * D] where there is one."""
        assert self.q_proj is not None
        shape, projected, gate = self.shape, self.q_proj(normed), None
        if shape.gated:
            projected, gate = projected.chunk(2, 1)
        rotation = run.rotation(shape.rotary, queries)
        q, _, _ = self.ops.rotate(projected, rotation, shape.n_heads, 0, self.q_norm, None, self.eps)
        return q, gate
