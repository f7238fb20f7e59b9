"""A gated MLP and experts beside each other, as Gemma 4 has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.run import Run
from ramet.layers.shape import Activation
from ramet.ops import Experts, Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True, eq=False)
class ScaledRouter:
    """Chooses each row's experts: scale [C] on what the product [E, C] sees, expert_scale [E] float32 on their
    weights."""

    scale: torch.Tensor
    proj: Linear
    expert_scale: torch.Tensor
    n_chosen: int
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [N, C], the residual stream as it is; returns (chosen [N, K] int64, weights [N, K] float32)."""
        seen = self.ops.rms_norm(x, None, self.eps) * self.scale * len(self.scale) ** -0.5  # rounded as in transformers
        shares = self.proj(seen).softmax(-1, dtype=torch.float32)
        weights, chosen = shares.topk(self.n_chosen, -1)
        return chosen, weights / weights.sum(-1, keepdim=True) * self.expert_scale[chosen]


@dataclass(frozen=True, slots=True, eq=False)
class DenseExperts:
    """Both see the same rows, each behind a norm of its own, and each is normed again before they are added: norm,
    dense_post_norm, experts_norm, experts_post_norm and post_norm [C]; gate_up_proj [2 I, C], down_proj [C, I]."""

    norm: torch.Tensor
    gate_up_proj: Linear
    down_proj: Linear
    dense_post_norm: torch.Tensor
    router: ScaledRouter
    experts_norm: torch.Tensor
    experts: Experts
    experts_post_norm: torch.Tensor
    post_norm: torch.Tensor
    activation: Activation
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: Run, queries: Queries) -> torch.Tensor:
        """x [N, C], the rows of `queries`; returns x + what both make of it."""
        normed = self.ops.rms_norm(x, self.norm, self.eps)
        dense = self.down_proj(self.ops.gated(self.gate_up_proj(normed), self.activation))
        sparse = self.experts(self.ops.rms_norm(x, self.experts_norm, self.eps), *self.router(x))
        both = self.ops.rms_norm(dense, self.dense_post_norm, self.eps)
        both = both + self.ops.rms_norm(sparse, self.experts_post_norm, self.eps)
        return x + self.ops.rms_norm(both, self.post_norm, self.eps)
