"""Products with a layer's weights on the CPU: oneDNN on weights packed once at load."""

from __future__ import annotations

import os
from typing import Any

import torch

from ramet.ops.linear import reference
from ramet.ops.linear.tiles import TiledLinear

_mkldnn: Any = torch.ops.mkldnn
# Rows that the packed layout is asked to suit. In bfloat16 the layout is the same for any number; in float32 one packed
# for a single row is up to a half slower for many, and one for many is no slower for a single row.
_ROWS = 640
# A product's code is made anew for each number of rows, and kept in two caches of 1024 entries, about 0.7 MB each: with
# rounds of all lengths that is most of a gigabyte in vain. Both read their size at their first use.
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "128")


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear | reference.PlainLinear:
    """Prepare weight [N, K] and bias [N] once at load. What is returned does not hold `weight`, unless packing does not
    pay for its dtype here (`packs`)."""
    return PackedLinear(weight, bias) if packs(weight.dtype) else reference.pack(weight, bias)


def pack_invariant(weight: torch.Tensor, bias: torch.Tensor | None = None) -> TiledLinear:
    """As `pack`; the bits of a product's rows depend on nothing but that row (ops/linear/tiles.py)."""
    return TiledLinear(PackedLinear if packs(weight.dtype) else reference.PlainLinear, weight, bias)


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products on packed weights of this dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(_mkldnn._is_mkldnn_bf16_supported()))


class PackedLinear:
    """x [M, K] -> [M, N], of a weight in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = _mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        self._bias = None if bias is None else bias.detach().to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N], rounded once."""
        total: torch.Tensor = _mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return total
