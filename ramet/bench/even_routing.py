"""Experts that rows choose evenly, in place of a router's random weights.

Those send nearly all rows to the same few experts: the first layers make alike what random embeddings tell apart, and
masked rows all have the same one. Routers are trained to balance, so with random weights a pass would read too few
experts, and have too many rows of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ramet.layers.shape import MLPShape, Shape
from ramet.ops import Ops

_FACTORS = {torch.int16: -25033, torch.int32: -1640531535}  # odd, by the golden ratio: numbers in a row spread evenly
Route = Callable[[torch.Tensor, int, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
RouteGrouped = Callable[[torch.Tensor, torch.Tensor, int, int, int, float], tuple[torch.Tensor, torch.Tensor]]


def scrambled(logits: torch.Tensor) -> torch.Tensor:
    """Logits of any shape, bfloat16 or float32 -> as many float32 numbers from -1 to 1, made of all their digits: as
    good as random, but the same for logits that are the same. Two launches."""
    whole = torch.int16 if logits.dtype.itemsize == 2 else torch.int32
    return logits.view(whole) * _FACTORS[whole] * 2.0 ** (1 - 8 * logits.dtype.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class EvenRoute:
    """`route` by scrambled logits. Rows that are the same, as those are that fill a recorded pass up, choose alike."""

    route: Route

    def __call__(
        self, logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.route(scrambled(logits), n_chosen, scale)


@dataclass(frozen=True, slots=True, eq=False)
class EvenRouteGrouped:
    """`route_grouped` by scrambled logits."""

    route: RouteGrouped

    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.route(scrambled(logits), bias, n_chosen, n_groups, n_kept, scale)


def evenly(ops: Ops, shape: Shape) -> Ops:
    """Ops by which experts are chosen evenly, where a shape has such."""
    if all(isinstance(own.mlp, MLPShape) for own in shape.layers):
        return ops
    return replace(
        ops, route=EvenRoute(ops.route), route_grouped=EvenRouteGrouped(ops.route_grouped),
        why={**ops.why, "routing": "even"},
    )  # fmt: skip
