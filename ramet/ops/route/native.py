"""The choice of each row's experts on the CPU by compiled kernels."""

from __future__ import annotations

from ctypes import c_float, c_int64

import torch

from ramet.ops.native import IS_BF16, NativeOp, pointer


class NativeRoute(NativeOp):
    """In bfloat16 and float32. A row's bits depend on that row alone."""

    def route(
        self, logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `reference.route`. Rows of logits may lie apart."""
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        n, n_experts = logits.shape
        assert n_chosen <= n_experts
        scale = None if scale is None else scale.float().contiguous()
        chosen, weights = torch.empty(n, n_chosen, dtype=torch.int64), torch.empty(n, n_chosen)
        self._functions.ramet_route(
            pointer(logits), c_int64(logits.stride(0)), n, n_experts, n_chosen, pointer(scale), pointer(chosen),
            pointer(weights), IS_BF16[logits.dtype], torch.get_num_threads(),
        )  # fmt: skip
        return chosen, weights

    def route_grouped(
        self, logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `reference.route_grouped`. Rows of logits may lie apart."""
        assert logits.dtype == bias.dtype == torch.float32
        logits, bias = logits if logits.stride(1) == 1 else logits.contiguous(), bias.contiguous()
        n, n_experts = logits.shape
        assert n_experts % n_groups == 0
        assert n_chosen <= n_kept * (n_experts // n_groups)
        chosen, weights = torch.empty(n, n_chosen, dtype=torch.int64), torch.empty(n, n_chosen)
        self._functions.ramet_route_grouped(
            pointer(logits), c_int64(logits.stride(0)), pointer(bias), n, n_experts, n_chosen, n_groups, n_kept,
            c_float(scale), pointer(chosen), pointer(weights), torch.get_num_threads(),
        )  # fmt: skip
        return chosen, weights
