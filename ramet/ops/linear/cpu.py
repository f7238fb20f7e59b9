"""Products with a layer's weights on the CPU, packed once at load: in bfloat16 by a compiled kernel where the processor
has units for it, else by oneDNN."""

from __future__ import annotations

import os
from ctypes import c_int64
from typing import Any

import torch

from ramet.ops.linear import reference
from ramet.ops.linear.tiles import TiledLinear
from ramet.ops.native import Library, library, pointer

_mkldnn: Any = torch.ops.mkldnn
# Rows that oneDNN's layout is asked to suit. In bfloat16 the layout is the same for any number; in float32 one packed
# for a single row is up to a half slower for many, and one for many is no slower for a single row.
_ROWS = 640
# oneDNN makes a product's code anew for each number of rows, and keeps it in two caches of 1024 entries, about 0.7 MB
# each: with rounds of all lengths that is most of a gigabyte in vain. Both read their size at their first use.
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "128")


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear | PackedLinear | reference.PlainLinear:
    """Prepare weight [N, K] and bias [N] once at load. What is returned does not hold `weight`, unless packing does not
    pay for its dtype here (`packs`)."""
    found = native(weight.dtype)
    if found is not None:
        return NativeLinear(found, weight, bias)
    return PackedLinear(weight, bias) if onednn_packs(weight.dtype) else reference.pack(weight, bias)


def pack_invariant(weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear | TiledLinear:
    """As `pack`; the bits of a product's rows depend on nothing but that row: the kernels' do anyway, oneDNN's in tiles
    (ops/linear/tiles.py)."""
    found = native(weight.dtype)
    if found is not None:
        return NativeLinear(found, weight, bias)
    return TiledLinear(PackedLinear if onednn_packs(weight.dtype) else reference.PlainLinear, weight, bias)


def packs(dtype: torch.dtype) -> bool:
    """Whether there are products on packed weights of this dtype on this processor."""
    return native(dtype) is not None or onednn_packs(dtype)


def units(dtype: torch.dtype) -> str:
    """What multiplies weights of this dtype."""
    found = native(dtype)
    if found is not None:
        return _NATIVE[found.isa]
    return "oneDNN" if onednn_packs(dtype) else "plain torch"


def native(dtype: torch.dtype) -> Library | None:
    """The kernels, where they have products of this dtype and those are the fastest."""
    found = library() if dtype == torch.bfloat16 else None
    return found if found is not None and found.isa in _NATIVE else None


_NATIVE = {"amx-bf16": "AMX", "avx512-bf16": "AVX512-BF16"}  # by what kernels are compiled for


def onednn_packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products on packed weights of this dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(_mkldnn._is_mkldnn_bf16_supported()))


class NativeLinear:
    """x [M, K] -> [M, N] in bfloat16, of a weight in the kernels' own layout; added to a residual stream, float32. The
    bits of a row depend on that row alone."""

    def __init__(self, found: Library, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        assert weight.dtype == torch.bfloat16
        self._functions, self._sizes = found.functions, tuple(weight.shape)
        n_bytes, weight = torch.empty(1, dtype=torch.int64), weight.detach().contiguous()
        self._functions.ramet_linear_size(*self._sizes, pointer(n_bytes))
        self._weight = torch.empty(int(n_bytes), dtype=torch.uint8)
        self._functions.ramet_linear_pack(pointer(weight), *self._sizes, pointer(self._weight), torch.get_num_threads())
        self._bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, None)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias + residual [M, N] float32, rounded nowhere else."""
        assert residual.dtype == torch.float32
        assert residual.shape == (len(x), self._sizes[0])
        return self._product(x, _rows(residual))

    def _product(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        assert x.dtype == torch.bfloat16
        assert x.shape[1] == self._sizes[1]
        x, out = _rows(x), torch.empty(len(x), self._sizes[0], dtype=(x if residual is None else residual).dtype)
        self._functions.ramet_linear(
            pointer(x), c_int64(x.stride(0)), len(x), pointer(self._weight), *self._sizes, pointer(self._bias),
            pointer(residual), c_int64(0 if residual is None else residual.stride(0)), pointer(out),
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x [M, N] whose rows are contiguous; they may lie apart."""
    return x if x.stride(1) == 1 else x.contiguous()


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
