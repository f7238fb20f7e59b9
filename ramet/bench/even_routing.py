"""Experts that rows choose evenly, in place of a router's random weights.

Those send nearly all rows to the same few experts: the first layers make alike what random embeddings tell apart, and
masked rows all have the same one. Routers are trained to balance, so with random weights a pass would read too few
experts, and have too many rows of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ramet.layers.shape import ExpertsShape, Shape
from ramet.ops import Ops

_FINE = 2.0**-8  # rows that are alike differ by more in their logits
Route = Callable[[torch.Tensor, torch.Tensor, int, int, int, float], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class EvenRouting:
    """`route_grouped` by the last digits of the logits: as good as random, but the same for rows that are the same, as
    those are that fill a recorded pass up. A launch more than by the logits themselves."""

    route: Route

    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.route(logits.remainder(_FINE), bias, n_chosen, n_groups, n_kept, scale)


def evenly(ops: Ops, shape: Shape) -> Ops:
    """Ops by which experts of groups are chosen evenly, where a shape has such."""
    if not any(isinstance(own.mlp, ExpertsShape) and own.mlp.groups for own in shape.layers):
        return ops
    return replace(ops, route_grouped=EvenRouting(ops.route_grouped), why={**ops.why, "routing": "even"})
