"""The half of a layer that is experts, some chosen for each row, and perhaps one shared by all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.mlp import Activation
from ramet.layers.parts import LayerParts
from ramet.layers.run import LayerRun
from ramet.ops import Experts, Linear, Ops
from ramet.round import Queries


@dataclass(frozen=True, slots=True)
class GroupsShape:
    """Experts chosen by sigmoids with a bias, of the `n_kept` best of `n_groups` groups alone, and weighed without it;
    weights come to `scale` (LLaDA2)."""

    n_groups: int
    n_kept: int
    scale: float


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """`n_experts` of `size`, of which each row takes `n_chosen` by a softmax, or by `groups`, and one of `shared_size`
    that all rows take (0: there is none), which may be gated (Qwen3.5-MoE)."""

    n_experts: int
    n_chosen: int
    size: int
    shared_size: int = 0
    shared_gated: bool = False
    groups: GroupsShape | None = None
    activation: Activation = "silu"

    @property
    def has_experts(self) -> bool:
        return True

    def build(self, parts: LayerParts, scale: torch.Tensor | None) -> ChosenExperts:
        """scale: None; no model has one behind such a layer."""
        assert scale is None
        return ChosenExperts(
            norm=parts.norm("mlp_norm"),
            router=self._router(parts),
            experts=parts.experts(self.activation),
            shared=self._shared(parts) if self.shared_size else None,
            eps=parts.eps,
            ops=parts.ops,
        )

    def _router(self, parts: LayerParts) -> TopKRouter | GroupsRouter:
        proj = parts.linear("router")
        if self.groups is None:
            return TopKRouter(proj, self.n_chosen, parts.ops)
        return GroupsRouter(proj, parts.take("expert_bias"), self.n_chosen, self.groups, parts.ops)

    def _shared(self, parts: LayerParts) -> SharedExpert:
        gate = parts.linear("shared_gate") if self.shared_gated else None
        return SharedExpert(parts.linear("gate_up_proj"), parts.linear("down_proj"), gate, self.activation, parts.ops)


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
class GroupsRouter:
    """Chooses each row's experts by sigmoids over the product [E, C], which is float32 whatever the model's dtype;
    bias [E] float32. (LLaDA2)"""

    proj: Linear
    bias: torch.Tensor
    n_chosen: int
    groups: GroupsShape
    ops: Ops

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [N, C]; returns (chosen [N, K] int64, weights [N, K] float32)."""
        own = self.groups
        logits = self.proj(x.float())
        return self.ops.route_grouped(logits, self.bias, self.n_chosen, own.n_groups, own.n_kept, own.scale)


@dataclass(frozen=True, slots=True, eq=False)
class SharedExpert:
    """The one that all rows take: gate_up_proj [2 I, C], down_proj [C, I], and the gate on it, [1, C], if there is."""

    gate_up_proj: Linear
    down_proj: Linear
    gate: Linear | None
    activation: Activation
    ops: Ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x and what it returns [N, C]."""
        made = self.down_proj(self.ops.gated(self.gate_up_proj(x), self.activation))
        return made if self.gate is None else self.ops.sigmoid_mul(made, self.gate(x).expand_as(made))


@dataclass(frozen=True, slots=True, eq=False)
class ChosenExperts:
    """norm [C]."""

    norm: torch.Tensor
    router: TopKRouter | GroupsRouter
    experts: Experts
    shared: SharedExpert | None
    eps: float
    ops: Ops

    def __call__(self, x: torch.Tensor, run: LayerRun, queries: Queries) -> torch.Tensor:
        """x [N, C] float32, the rows of `queries`; returns x + what the experts make of it."""
        normed = self.ops.rms_norm(x, self.norm, self.eps, run.dtype)
        if self.shared is not None:
            x = x + self.shared(normed)
        return x + self.experts(normed, *self.router(normed))
