"""Experts that rows choose evenly, in place of a router's random weights.

Those send nearly all rows to the same few experts: the first layers make alike what random embeddings tell apart, and
masked rows all have the same one. Routers are trained to balance, so with random weights a pass would read too few
experts, and have too many rows of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch

from ramet.layers.shape import ExpertsShape, Shape
from ramet.ops import Ops

Route = Callable[[torch.Tensor, torch.Tensor, int, int, int, float], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class EvenRouting:
    """`route_grouped` by other logits [N, E], those of a row's place in its round. The router's own are computed, and
    not looked at; nothing is launched besides."""

    route: Route
    logits: torch.Tensor

    @classmethod
    def of(cls, route: Route, shape: Shape, n_rows: int, device: torch.device) -> Self:
        """For passes of up to n_rows."""
        n_experts = max((own.mlp.n_experts for own in shape.layers if isinstance(own.mlp, ExpertsShape)), default=0)
        generator = torch.Generator().manual_seed(0)
        return cls(route, torch.randn(n_rows, n_experts, generator=generator).to(device))

    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert len(logits) <= len(self.logits)
        return self.route(self.logits[: len(logits)], bias, n_chosen, n_groups, n_kept, scale)


def evenly(ops: Ops, shape: Shape, n_rows: int, device: torch.device) -> Ops:
    """Ops by which experts of groups are chosen evenly, where a shape has such."""
    if not any(isinstance(own.mlp, ExpertsShape) and own.mlp.groups for own in shape.layers):
        return ops
    routing = EvenRouting.of(ops.route_grouped, shape, n_rows, device)
    return replace(ops, route_grouped=routing, why={**ops.why, "routing": "even"})
