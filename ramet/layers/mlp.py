"""The gated MLP half of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ramet.layers.output import OutputProjection
from ramet.layers.parts import LayerParts
from ramet.layers.run import LayerRun
from ramet.ops import Linear, Ops
from ramet.round import Queries

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class MLPShape:
    """A gated MLP, whose gate goes through the activation."""

    size: int
    activation: Activation = "silu"
    bias: bool = False

    @property
    def has_experts(self) -> bool:
        return False

    def build(self, parts: LayerParts, scale: torch.Tensor | None) -> GatedMLP:
        """scale: what leaves the layer is multiplied by it."""
        output = parts.output("down_proj", "mlp_post_norm", scale)
        norm, gate_up_proj = parts.norm("mlp_norm"), parts.linear("gate_up_proj")
        return GatedMLP(norm, gate_up_proj, output, self.activation, parts.eps, parts.ops)


@dataclass(frozen=True, slots=True, eq=False)
class GatedMLP:
    """norm [C], gate_up_proj [2 I, C], and the output's product [C, I]."""

    norm: torch.Tensor
    gate_up_proj: Linear
    output: OutputProjection
    activation: Activation
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: LayerRun, queries: Queries) -> torch.Tensor:
        """x [N, C] float32, the rows of `queries`; returns x + MLP(x)."""
        normed = self.ops.rms_norm(x, self.norm, self.eps, run.dtype)
        return self.output(self.ops.gated(self.gate_up_proj(normed), self.activation), x, run, queries)
