"""The gated MLP half of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.ops import Linear, Ops


@dataclass(frozen=True, slots=True, eq=False)
class GatedMLP:
    """gate_up_proj [2 I, C], down_proj [C, I]."""

    gate_up_proj: Linear
    down_proj: Linear
    ops: Ops

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x [N, C] normed; returns residual + MLP(x)."""
        return self.down_proj.add(self.ops.silu_mul(self.gate_up_proj(x)), residual)
