"""A gated MLP and experts beside each other, as Gemma 4 has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.mlp import Activation, MLPShape
from ramet.layers.parts import LayerParts
from ramet.layers.run import LayerRun
from ramet.ops import Experts, Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True)
class DenseExpertsShape:
    """A gated MLP beside `n_experts` of `size`, of which each row takes `n_chosen` (Gemma 4)."""

    dense: MLPShape
    n_experts: int
    n_chosen: int
    size: int

    @property
    def has_experts(self) -> bool:
        return True

    def build(self, parts: LayerParts, scale: torch.Tensor | None) -> DenseExperts:
        """scale: what leaves the layer is multiplied by it."""
        router = ScaledRouter(
            scale=parts.take("router_scale"),
            proj=parts.linear("router"),
            expert_scale=parts.take("expert_scale").float(),
            n_chosen=self.n_chosen,
            ops=parts.ops,
        )
        return DenseExperts(
            norm=parts.norm("mlp_norm"),
            gate_up_proj=parts.linear("gate_up_proj"),
            down_proj=parts.linear("down_proj"),
            dense_post_norm=parts.norm("dense_post_norm"),
            router=router,
            experts_norm=parts.norm("experts_norm"),
            experts=parts.experts(self.dense.activation),
            experts_post_norm=parts.norm("experts_post_norm"),
            post_norm=parts.norm("mlp_post_norm"),
            scale=scale,
            activation=self.dense.activation,
            eps=parts.eps,
            ops=parts.ops,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ScaledRouter:
    """Chooses each row's experts: scale [C] on the input of the product [E, C], expert_scale [E] float32 on weights."""

    scale: torch.Tensor
    proj: Linear
    expert_scale: torch.Tensor
    n_chosen: int
    ops: Ops

    def __call__(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """seen [N, C], the residual stream normed and scaled; returns (chosen [N, K] int64, weights [N, K] float32)."""
        return self.ops.route(self.proj(seen), self.n_chosen, self.expert_scale)


@dataclass(frozen=True, slots=True, eq=False)
class DenseExperts:
    """Both see the same rows, each behind a norm of its own, and each is normed again before they are added: norm,
    dense_post_norm, experts_norm, experts_post_norm and post_norm [C]; gate_up_proj [2 I, C], down_proj [C, I]. scale:
    what leaves the layer is multiplied by it (`LayerShape.scaled`)."""

    norm: torch.Tensor
    gate_up_proj: Linear
    down_proj: Linear
    dense_post_norm: torch.Tensor
    router: ScaledRouter
    experts_norm: torch.Tensor
    experts: Experts
    experts_post_norm: torch.Tensor
    post_norm: torch.Tensor
    scale: torch.Tensor | None
    activation: Activation
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: LayerRun, queries: Queries) -> torch.Tensor:
        """x [N, C] float32, the rows of `queries`; returns x + what both make of it."""
        dense, sparse, seen = self.ops.expert_norms(x, self.norm, self.experts_norm, self.router.scale, self.eps)
        dense = self.down_proj(self.ops.gated(self.gate_up_proj(dense), self.activation))
        sparse = self.experts(sparse, *self.router(seen))
        parts = (dense, self.dense_post_norm), (sparse, self.experts_post_norm)
        return self.ops.join(x, parts, self.post_norm, self.scale, run.kinds(self.scale, queries), self.eps)
