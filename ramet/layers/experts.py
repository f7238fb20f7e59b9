"""The half of a layer that is experts, some chosen for each row and one shared by all, as Qwen3.5-MoE has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.run import Run
from ramet.layers.shape import Activation
from ramet.ops import Experts, Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True, eq=False)
class TopKRouter:
    """Chooses each row's experts by a softmax over the product [E, C]; the chosen shares are made to sum to 1."""

    proj: Linear
    n_chosen: int
    ops: Ops

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [N, C]; returns (chosen [N, K] int64, weights [N, K] float32, rounded to x's dtype)."""
        return self.ops.route(self.proj(x), self.n_chosen, None)


@dataclass(frozen=True, slots=True, eq=False)
class SharedExperts:
    """norm [C]; the shared expert's gate_up_proj [2 I, C] and down_proj [C, I], and the gate on it, [1, C]."""

    norm: torch.Tensor
    router: TopKRouter
    experts: Experts
    gate_up_proj: Linear
    down_proj: Linear
    shared_gate: Linear
    activation: Activation
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: Run, queries: Queries) -> torch.Tensor:
        """x [N, C], the rows of `queries`; returns x + what the experts make of it."""
        normed = self.ops.rms_norm(x, self.norm, self.eps)
        shared = self.down_proj(self.ops.gated(self.gate_up_proj(normed), self.activation))
        shared = self.ops.sigmoid_mul(shared, self.shared_gate(normed).expand_as(shared))
        return x + (self.experts(normed, *self.router(normed)) + shared)
