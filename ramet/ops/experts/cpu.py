"""A layer's experts on the CPU: one call of a compiled kernel on weights packed once at load, or the reference's torch.

The kernel reads the weights of each expert that is chosen once. A row's bits depend on that row alone: each number is
summed in the order of its terms, and a row's experts in ascending order, whatever other rows are in the call.
"""

from __future__ import annotations

from ctypes import c_float, c_int64

import torch

from ramet.ops.experts import reference
from ramet.ops.native import Library, library, pointer

_ACTIVATIONS = ("silu", "gelu_tanh")  # by the kernel's numbers


def pack(gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> PackedExperts | reference.PlainExperts:
    """As `reference.pack`. What is returned does not hold the weights, unless there is no kernel for their dtype."""
    found = library()
    if found is None or activation not in _ACTIVATIONS or not packs(found, gate_up.dtype):
        return reference.pack(gate_up, down, activation)
    return PackedExperts(found, gate_up, down, activation)


def route(logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.route`. Rows of logits may lie apart."""
    found = library()
    if found is None or logits.dtype not in (torch.bfloat16, torch.float32):
        return reference.route(logits, n_chosen, scale)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    n, n_experts = logits.shape
    assert n_chosen <= n_experts
    scale = None if scale is None else scale.float().contiguous()
    chosen, weights = torch.empty(n, n_chosen, dtype=torch.int64), torch.empty(n, n_chosen)
    found.functions.ramet_route(
        pointer(logits), c_int64(logits.stride(0)), n, n_experts, n_chosen, pointer(scale), pointer(chosen),
        pointer(weights), int(logits.dtype == torch.bfloat16), torch.get_num_threads(),
    )  # fmt: skip
    return chosen, weights


def route_grouped(
    logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.route_grouped`. Rows of logits may lie apart."""
    found = library()
    if found is None:
        return reference.route_grouped(logits, bias, n_chosen, n_groups, n_kept, scale)
    assert logits.dtype == bias.dtype == torch.float32
    logits, bias = logits if logits.stride(1) == 1 else logits.contiguous(), bias.contiguous()
    n, n_experts = logits.shape
    assert n_experts % n_groups == 0
    assert n_chosen <= n_kept * (n_experts // n_groups)
    chosen, weights = torch.empty(n, n_chosen, dtype=torch.int64), torch.empty(n, n_chosen)
    found.functions.ramet_route_grouped(
        pointer(logits), c_int64(logits.stride(0)), pointer(bias), n, n_experts, n_chosen, n_groups, n_kept,
        c_float(scale), pointer(chosen), pointer(weights), torch.get_num_threads(),
    )  # fmt: skip
    return chosen, weights


def packs(found: Library, dtype: torch.dtype) -> bool:
    """Whether there is a kernel: not where bfloat16 would have to be widened, for experts take most of a model's
    memory."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and found.isa in ("amx-bf16", "avx512-bf16"))


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
