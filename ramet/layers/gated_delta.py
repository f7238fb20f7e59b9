"""The Gated DeltaNet half of a layer (Yang et al. 2025), as Qwen3.5 has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.cache.state import Recurrent
from ramet.layers.output import OutputProjection
from ramet.layers.parts import LayerParts
from ramet.layers.run import LayerRun
from ramet.ops import Linear, Ops, OpShape
from ramet.ops.planning import Planner, Planning
from ramet.round import Queries


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """A gated delta rule behind a short convolution (Yang et al. 2025), with the methods of `AttentionShape`."""

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def n_channels(self) -> int:
        """Channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim

    @property
    def keys_of(self) -> None:
        return None

    @property
    def keeps(self) -> bool:
        return True

    @property
    def recurrent(self) -> bool:
        return True

    @property
    def kind(self) -> object:
        return self

    def op_shape(self, dtype: torch.dtype, *, has_experts: bool) -> OpShape:
        return OpShape(
            dtype,
            n_key_heads=self.n_key_heads,
            n_value_heads=self.n_value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            n_channels=self.n_channels,
            conv_width=self.conv_width,
            has_experts=has_experts,
        )

    def build(self, parts: LayerParts) -> GatedDeltaMixer:
        return GatedDeltaMixer(
            layer=parts.layer,
            shape=self,
            norm=parts.norm("input_norm"),
            in_proj=parts.linear("in_proj"),
            conv=parts.take("conv").float().view(self.n_channels, self.conv_width).t().contiguous().t(),
            rate=-parts.take("a_log").float().exp(),
            dt_bias=parts.take("dt_bias").float(),
            value_norm=parts.norm("value_norm"),
            output=parts.output("o_proj", "mixer_post_norm"),
            eps=parts.eps,
            ops=parts.ops,
        )

    def allocate(
        self, n_pages: int, page_size: int, n_states: int, dtype: torch.dtype, device: torch.device
    ) -> Recurrent:
        window = (n_states, self.conv_width - 1, self.n_channels)
        state = (n_states, self.n_value_heads, self.key_dim, self.value_dim)
        return Recurrent(torch.empty(window, dtype=dtype, device=device), torch.empty(state, device=device))

    def row_bytes(self, dtype: torch.dtype) -> int:
        return 0

    def state_bytes(self, dtype: torch.dtype) -> int:
        state = 4 * self.n_value_heads * self.key_dim * self.value_dim
        return state + (self.conv_width - 1) * self.n_channels * dtype.itemsize

    def planners(self, planning: Planning, *, read: bool) -> dict[object, Planner]:
        return planning.recurrent(self.conv_width)


@dataclass(frozen=True, slots=True, eq=False)
class GatedDeltaMixer:
    """Norm, projections, convolution and gates of recurrent layer number `layer`.

    in_proj [2 Hk Dk + 2 Hv Dv + 2 Hv, C]: queries, keys, values, the output's gate z, then b and a of each value head;
    conv [channels, W] float32, channels side by side; rate (-exp(A_log)) and dt_bias [Hv] float32; value_norm [Dv];
    norm [C].
    """

    layer: int
    shape: DeltaShape
    norm: torch.Tensor
    in_proj: Linear
    conv: torch.Tensor
    rate: torch.Tensor
    dt_bias: torch.Tensor
    value_norm: torch.Tensor
    output: OutputProjection
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: LayerRun, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C] float32, the rows of `given`, which are all; returns [N, C], the rows of `queries`."""
        shape = self.shape
        stream = run.stream
        states = run.store.states(self.layer) if run.store is not None else None
        projected = self.in_proj(self.ops.rms_norm(x, self.norm, self.eps, run.dtype))
        wide = shape.n_channels
        n_values = shape.n_value_heads * shape.value_dim
        mixed, z, b, a = projected.split([wide, n_values, shape.n_value_heads, shape.n_value_heads], 1)
        mixed = self.ops.causal_conv(mixed, self.conv, stream, states)
        keys = shape.n_key_heads * shape.key_dim
        q, k, v = mixed.split([keys, keys, n_values], 1)
        q, k = (part.unflatten(1, (shape.n_key_heads, shape.key_dim)) for part in (q, k))
        v, z = (part.unflatten(1, (shape.n_value_heads, shape.value_dim)) for part in (v, z))
        out = self.ops.gated_delta(
            q, k, v, a, b, self.rate, self.dt_bias, stream, states, gate=z, weight=self.value_norm, eps=self.eps
        )
        if given is not queries:
            x, out = (part.index_select(0, queries.rows) for part in (x, out))
        return self.output(out.flatten(1), x, run, queries) if len(x) else x
