"""The Gated DeltaNet half of a layer (Yang et al. 2025), as Qwen3.5 has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.output import Output
from ramet.layers.run import Run
from ramet.layers.shape import DeltaShape
from ramet.ops import Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True, eq=False)
class GatedDelta:
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
    output: Output
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: Run, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C] float32, the rows of `given`, which are all; returns [N, C], the rows of `queries`."""
        shape, stream = self.shape, run.stream
        states = run.store.states(self.layer) if run.store is not None else None
        projected = self.in_proj(self.ops.rms_norm(x, self.norm, self.eps, run.dtype))
        wide, n_values = shape.n_channels, shape.n_value_heads * shape.value_dim
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
