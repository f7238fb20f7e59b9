"""The attention half of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ramet.cache.kv import KeyValue
from ramet.layers.output import OutputProjection
from ramet.layers.parts import LayerParts
from ramet.layers.run import LayerRun
from ramet.ops import Linear, Ops, OpShape
from ramet.ops.planning import Planner, Planning
from ramet.round import Queries


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Softmax attention. window 0 sees all. rotary: which of the model's rotary embeddings. qk_norm: a norm on each
    query and key head; unit_values: one without a weight on each value head; gated: the output times the sigmoid of
    a gate, whose rows stand behind the queries' in q_proj. biased: the products that have biases, by our names.
    keys_of: the earlier layer whose keys and values this one reads, None where it has its own; keys_are_values: values
    are the keys' projection, before norm and rotation."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    rotary: int = 0
    biased: tuple[str, ...] = ()
    qk_norm: bool = False
    unit_values: bool = False
    gated: bool = False
    keys_are_values: bool = False
    keys_of: int | None = None

    @property
    def keeps(self) -> bool:
        """Whether the layer leaves something of each row to later ones."""
        return self.keys_of is None

    @property
    def recurrent(self) -> bool:
        """Whether the layer folds what it has seen into a state."""
        return False

    @property
    def kind(self) -> object:
        """Equal for layers that launch the same kernels."""
        return replace(self, keys_of=None), self.keeps

    def op_shape(self, dtype: torch.dtype, *, has_experts: bool) -> OpShape:
        """What the layer needs of its ops; has_experts: as the other half of the layer says."""
        return OpShape(dtype, head_dim=self.head_dim, has_experts=has_experts)

    def build(self, parts: LayerParts) -> AttentionMixer:
        merged = self.keeps and not self.keys_are_values and parts.every
        return AttentionMixer(
            layer=parts.layer,
            shape=self,
            lends=parts.lends,
            norm=parts.norm("input_norm"),
            qkv_proj=self._qkv(parts) if merged else None,
            q_proj=None if merged else parts.linear("q_proj"),
            kv_proj=parts.linear("kv_proj") if self.keeps and not merged else None,
            q_norm=parts.norm("q_norm") if self.qk_norm else None,
            k_norm=parts.norm("k_norm") if self.qk_norm and self.keeps else None,
            output=parts.output("o_proj", "mixer_post_norm"),
            eps=parts.eps,
            ops=parts.ops,
        )

    def allocate(
        self, n_pages: int, page_size: int, n_states: int, dtype: torch.dtype, device: torch.device
    ) -> KeyValue | None:
        """Pages, uninitialised; None where the layer reads another's."""
        if not self.keeps:
            return None
        size = (n_pages, page_size, self.n_kv_heads, self.head_dim)
        return KeyValue(*(torch.empty(size, dtype=dtype, device=device) for _ in "kv"))

    def row_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of what the layer keeps of each row."""
        return 2 * self.n_kv_heads * self.head_dim * dtype.itemsize if self.keeps else 0

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one recurrent state."""
        return 0

    def planners(self, planning: Planning, *, read: bool) -> dict[object, Planner]:
        """Those of the layer's ops; read: the layer's queries are the rows that are read."""
        heads = {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads, "head_dim": self.head_dim}
        return planning.attention(**heads, window=self.window, read=read)

    def _qkv(self, parts: LayerParts) -> Linear:
        """q_proj and kv_proj as one product; rows of a gate, which follow the queries', come behind the rest."""
        width = self.n_heads * self.head_dim
        merged = []
        for ending in ("", "_bias") if parts.has("q_proj_bias") else ("",):
            q, kv = parts.take(f"q_proj{ending}"), parts.take(f"kv_proj{ending}")
            merged.append(torch.cat((q[:width], kv, q[width:])))
        return parts.ops.pack(*merged)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMixer:
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
    output: OutputProjection
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: LayerRun, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C] float32, the rows of `given`; returns [N, C], the rows of `queries`, which are among them."""
        shape = self.shape
        normed = self.ops.rms_norm(x, self.norm, self.eps, run.dtype)
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
        self, projected: torch.Tensor, run: LayerRun, pages: KeyValue | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Queries [T, Hq, D], keys and values [T, Hk, D], which are kept in pages, and the gate [T, Hq * D], if any."""
        shape = self.shape
        gate = None
        if shape.gated:
            width = shape.n_heads * shape.head_dim
            projected, gate = projected[:, :-width], projected[:, -width:]
        rotation = run.rotation(shape.rotary, run.stream.every)
        q, k, v = self.ops.rotate(
            projected,
            rotation,
            shape.n_heads,
            shape.n_kv_heads,
            self.q_norm,
            self.k_norm,
            self.eps,
            None if shape.unit_values else pages,
            run.stream,
        )
        return q, k, self._seen(k, v, run, pages), gate

    def _keys(self, normed: torch.Tensor, run: LayerRun, pages: KeyValue | None) -> tuple[torch.Tensor, torch.Tensor]:
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

    def _seen(self, k: torch.Tensor, v: torch.Tensor, run: LayerRun, pages: KeyValue | None) -> torch.Tensor:
        """The values as rows see them. Leaves them and the keys to the layers and rounds that read them."""
        if self.shape.unit_values:
            v = self.ops.rms_norm(v, None, self.eps)
            if pages is not None:
                self.ops.keep(pages, k, v, run.stream)
        if self.lends:
            run.keys[self.layer] = k, v
        return v

    def _queries(
        self, normed: torch.Tensor, run: LayerRun, queries: Queries
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries [N, Hq, D], and the gate [N, Hq * D] where there is one."""
        assert self.q_proj is not None
        shape = self.shape
        projected = self.q_proj(normed)
        gate = None
        if shape.gated:
            projected, gate = projected.chunk(2, 1)
        rotation = run.rotation(shape.rotary, queries)
        q, _, _ = self.ops.rotate(projected, rotation, shape.n_heads, 0, self.q_norm, None, self.eps)
        return q, gate
