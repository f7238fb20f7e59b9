"""Products with a layer's weights on the CPU by oneDNN, on weights packed once at load."""

from __future__ import annotations

import os
from typing import Any

import torch

from ramet.ops.linear.tiles import TiledLinear
from ramet.ops.shape import OpShape

how = "oneDNN, weights packed once"
_mkldnn: Any = torch.ops.mkldnn
# The number of rows for which oneDNN chooses its layout. In bfloat16 the layout is the same for any number; in float32
# one packed for a single row is up to a half slower for many, and one for many is no slower for a single row.
_ROWS = 640
# oneDNN makes a product's code anew for each number of rows, and keeps it in two caches of 1024 entries, about 0.7 MB
# each: with rounds of all lengths that is most of a gigabyte in vain. Both read their size at their first use.
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "128")


def takes(shape: OpShape) -> str | None:
    """float32, and bfloat16 where the processor has units for it."""
    if not torch.backends.mkldnn.is_available():
        return "torch has no oneDNN"
    fits = shape.dtype == torch.float32 or (shape.dtype == torch.bfloat16 and bool(_mkldnn._is_mkldnn_bf16_supported()))
    return None if fits else f"{shape.dtype_name} on this processor"


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """Prepare weight [N, K] and bias [N] once at load. What is returned does not hold `weight`."""
    return PackedLinear(weight, bias)


def pack_invariant(weight: torch.Tensor, bias: torch.Tensor | None = None) -> TiledLinear:
    """As `pack`; the bits of a product's rows depend on nothing but that row (ops/linear/tiles.py)."""
    return TiledLinear(PackedLinear, weight, bias)


class PackedLinear:
    """x [M, K] -> [M, N], of a weight in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = _mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        self._bias = None if bias is None else bias.detach().to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N] float32."""
        assert residual.shape == (len(x), self._weight.shape[0])
        if x.dtype != residual.dtype:  # oneDNN adds numbers of its own dtype alone
            return residual + self(x)
        total: torch.Tensor = _mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return total
