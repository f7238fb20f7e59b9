"""What the rows of a canvas begin from, as DiffusionGemma has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from ramet.layers.mlp import Activation, MLPShape
from ramet.layers.parts import LayerParts
from ramet.ops import Linear, Ops


@dataclass(frozen=True, slots=True, eq=False)
class Soft:
    """What the step before made of some rows of canvases: rows [M] are their places in the stream, values [M, C] the
    embeddings that it expects there, weighed by its probabilities and scaled as embeddings are."""

    rows: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SelfConditioning:
    """Joins what the step before expects to the embeddings of a canvas, and norms them: norm [C] and gate_up_proj
    [2 I, C] see the former, down_proj [C, I] leads back. Values of zeros add nothing, as at a first step."""

    norm: torch.Tensor
    gate_up_proj: Linear
    down_proj: Linear
    activation: Activation
    eps: float
    ops: Ops

    @classmethod
    def of(cls, shape: MLPShape, parts: LayerParts) -> Self:
        gate_up_proj, down_proj = parts.linear("gate_up_proj"), parts.linear("down_proj")
        return cls(parts.norm("norm"), gate_up_proj, down_proj, shape.activation, parts.eps, parts.ops)

    def __call__(self, x: torch.Tensor, whole: torch.Tensor, soft: Soft | None) -> torch.Tensor:
        """x [T, C] float32, the stream's embeddings, and whole [T], the rows of canvases; returns [T, C]."""
        if soft is not None:
            normed = self.ops.rms_norm(soft.values, self.norm, self.eps)
            signal = self.down_proj(self.ops.gated(self.gate_up_proj(normed), self.activation))
            x = x.index_add(0, soft.rows, signal.float())
        return torch.where(whole[:, None] > 0, self.ops.rms_norm(x, None, self.eps), x)
