"""A layer's experts on the CPU: one call of a compiled kernel on weights packed once at load.

The kernel reads the weights of each expert that is chosen once. A row's bits depend on that row alone: each number is
summed in the order of its terms, and a row's experts in ascending order, whatever other rows are in the call.
"""

from __future__ import annotations

import torch

from ramet.ops.native import Library, NativeOp, pointer
from ramet.ops.shape import OpShape

_ACTIVATIONS = ("silu", "gelu_tanh")  # by the kernel's numbers
_BFLOAT16_UNITS = ("amx-bf16", "avx512-bf16")


class NativeExperts(NativeOp):
    """In float32, and in bfloat16 where the processor multiplies it: experts, most of a model's memory, stay narrow."""

    def __init__(self, found: Library) -> None:
        super().__init__(found)
        self._library = found

    def takes(self, shape: OpShape) -> str | None:
        """See `Variant`."""
        if shape.has_experts and shape.dtype == torch.bfloat16 and self._library.isa not in _BFLOAT16_UNITS:
            return "experts in bfloat16 on this processor"
        return super().takes(shape)

    def pack(self, gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> PackedExperts:
        """As `reference.pack`. What is returned does not hold the weights."""
        return PackedExperts(self._library, gate_up, down, activation)


class PackedExperts:
    """As `reference.PlainExperts`, of weights in the kernel's own layout."""

    def __init__(self, found: Library, gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> None:
        self._functions, self._sizes = found.functions, (len(down), down.shape[2], down.shape[1])
        self._dtype, self._activation = down.dtype, _ACTIVATIONS.index(activation)
        n_bytes = torch.empty(2, dtype=torch.int64)
        self._functions.ramet_experts_sizes(*self._sizes, self._is_bf16, pointer(n_bytes))
        self._gate_up, self._down = (torch.empty(n, dtype=torch.uint8) for n in n_bytes.tolist())
        gate_up, down = gate_up.detach().contiguous(), down.detach().contiguous()
        self._functions.ramet_experts_pack(
            pointer(gate_up), pointer(down), *self._sizes, pointer(self._gate_up), pointer(self._down),
            self._is_bf16, torch.get_num_threads(),
        )  # fmt: skip

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        assert x.dtype == self._dtype
        assert x.shape[1] == self._sizes[2]
        assert len(x) == len(chosen)
        assert chosen.shape == weights.shape
        x, chosen, weights = x.contiguous(), chosen.contiguous(), weights.contiguous()
        assert chosen.dtype == torch.int64
        assert weights.dtype == torch.float32
        out = torch.empty(x.shape, dtype=x.dtype)
        self._functions.ramet_experts(
            pointer(x), pointer(chosen), pointer(weights), pointer(self._gate_up), pointer(self._down), *self._sizes,
            *chosen.shape, self._activation, pointer(out), self._is_bf16, torch.get_num_threads(),
        )  # fmt: skip
        return out

    @property
    def _is_bf16(self) -> int:
        return int(self._dtype == torch.bfloat16)
