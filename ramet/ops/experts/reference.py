"""A layer's experts in plain torch: the specification of the other files here."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from ramet.ops.norm.reference import gated
from ramet.ops.shape import takes_all

takes = takes_all


def pack(gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> PlainExperts:
    """Prepare gate_up [E, 2 I, C], gates first, and down [E, C, I] once at load; `activation` as in norm's `gated`."""
    return PlainExperts(gate_up, down, activation)


class PlainExperts:
    """x [N, C], chosen [N, k] int64, weights [N, k] float32 -> [N, C] in x's dtype.

    A row gives the sum over its experts of weight * down(activation(gate) * up), in ascending order of the experts,
    which is a function of the row alone; summed in float32 and rounded once. A row's experts differ from each other.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> None:
        self._gate_up, self._down, self._activation = gate_up, down, activation

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert, rows, places in touched(chosen):
            hidden = gated(functional.linear(x[rows], self._gate_up[expert]), self._activation)
            product = functional.linear(hidden, self._down[expert]).float()
            out[rows] += product * weights[rows, places, None]
        return out.to(x.dtype)


def touched(chosen: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The chosen experts, ascending, each with its rows and its place among each row's choices."""
    for expert in chosen.unique().tolist():
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        yield expert, rows, places
