"""Products with a layer's weights in plain torch: the specification of the other files here."""

from __future__ import annotations

import torch
from torch.nn import functional

from ramet.ops.linear.tiles import TiledLinear
from ramet.ops.shape import takes_all

takes = takes_all


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PlainLinear:
    """Prepare weight [N, K] and bias [N] once at load."""
    return PlainLinear(weight, bias)


def pack_invariant(weight: torch.Tensor, bias: torch.Tensor | None = None) -> TiledLinear:
    """As `pack`; the bits of a product's rows depend on nothing but that row."""
    return TiledLinear(PlainLinear, weight, bias)


class PlainLinear:
    """x [M, K] -> [M, N], of x's dtype; added to a residual stream, float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N] float32."""
        return residual + functional.linear(x, self.weight, self.bias)
