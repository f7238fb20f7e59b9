"""The gated MLP half of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.output import Output
from ramet.layers.run import Run
from ramet.layers.shape import Activation
from ramet.ops import Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True, eq=False)
class GatedMLP:
    """norm [C], gate_up_proj [2 I, C], and the output's product [C, I]."""

    norm: torch.Tensor
    gate_up_proj: Linear
    output: Output
    activation: Activation
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: Run, queries: Queries) -> torch.Tensor:
        """x [N, C] float32, the rows of `queries`; returns x + MLP(x)."""
        normed = self.ops.rms_norm(x, self.norm, self.eps, run.dtype)
        return self.output(self.ops.gated(self.gate_up_proj(normed), self.activation), x, run, queries)
