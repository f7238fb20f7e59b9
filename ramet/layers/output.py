"""How what half a layer computes joins the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.ops import Linear, Ops


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """The last product of half a layer, [C, K], and the norm [C] on it where the family has one."""

    proj: Linear
    norm: torch.Tensor | None
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x [N, K], residual [N, C]; returns [N, C]."""
        if self.norm is None:
            return self.proj.add(x, residual)
        return residual + self.ops.rms_norm(self.proj(x), self.norm, self.eps)
