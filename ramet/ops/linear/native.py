"""Products with a layer's weights on the CPU by a compiled kernel, where the processor multiplies bfloat16 itself."""

from __future__ import annotations

from ctypes import c_int64

import torch

from ramet.ops.native import Library, NativeOp, pointer
from ramet.ops.shape import OpShape

_UNITS = {"amx-bf16": "AMX", "avx512-bf16": "AVX512-BF16"}  # by what the kernels are compiled for


class NativeProducts(NativeOp):
    """In bfloat16. A row's bits depend on that row alone, so the invariant products are the same."""

    def __init__(self, found: Library) -> None:
        super().__init__(found)
        self._library = found
        self.how = f"{_UNITS.get(found.isa)}, weights packed once"

    def takes(self, shape: OpShape) -> str | None:
        """See `Variant`."""
        if shape.dtype != torch.bfloat16:
            return shape.dtype_name
        return None if self._library.isa in _UNITS else "bfloat16 on this processor"

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear:
        """Prepare weight [N, K] and bias [N] once at load. What is returned does not hold `weight`."""
        return NativeLinear(self._library, weight, bias)

    def pack_invariant(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear:
        """As `pack`."""
        return NativeLinear(self._library, weight, bias)


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
