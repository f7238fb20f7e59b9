"""How what half a layer computes joins the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.run import LayerRun
from ramet.ops import Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True, eq=False)
class OutputProjection:
    """The last product of half a layer, [C, K], and the norm [C] on it where the family has one. scale: of a layer that
    ends here, what leaves it is multiplied by it (`LayerShape.scaled`); only with a norm."""

    proj: Linear
    norm: torch.Tensor | None
    scale: torch.Tensor | None
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, residual: torch.Tensor, run: LayerRun, queries: Queries) -> torch.Tensor:
        """x [N, K] and residual [N, C] float32, the rows of `queries`; returns [N, C] float32."""
        if self.norm is None:
            assert self.scale is None
            return self.proj.add(x, residual)
        kinds = run.kinds(self.scale, queries)
        return self.ops.join(residual, ((self.proj(x), self.norm),), None, self.scale, kinds, self.eps)
