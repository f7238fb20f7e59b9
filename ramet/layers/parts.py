"""LayerParts: takes a layer's weights and makes of them what its halves have in common."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from ramet.layers.output import OutputProjection
from ramet.ops import Experts, Linear, Ops

Weights = MutableMapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    """The weights whose names begin with `at`, each of which is taken out of the mapping, so that no product's weight
    stays beside its packed form.

    Of a layer also: its number; lends: whether later layers read its keys and values; every: whether what follows its
    mixer works on every row, and not on those alone that are read; post_norms: as in `LayerShape`.
    """

    weights: Weights
    at: str
    eps: float
    ops: Ops
    layer: int = 0
    lends: bool = False
    every: bool = True
    post_norms: bool = False

    def take(self, name: str) -> torch.Tensor:
        return self.weights.pop(f"{self.at}.{name}")

    def has(self, name: str) -> bool:
        return f"{self.at}.{name}" in self.weights

    def norm(self, name: str) -> torch.Tensor:
        return self.take(name).float()

    def linear(self, name: str) -> Linear:
        """A product, with its bias where there is one."""
        return self.ops.pack(self.take(name), self.weights.pop(f"{self.at}.{name}_bias", None))

    def experts(self, activation: str) -> Experts:
        """The products of all experts."""
        return self.ops.pack_experts(self.take("gate_up_experts"), self.take("down_experts"), activation)

    def output(self, name: str, norm: str, scale: torch.Tensor | None = None) -> OutputProjection:
        """The product that half a layer ends with, and its norm where layers have such."""
        post_norm = self.norm(norm) if self.post_norms else None
        return OutputProjection(self.linear(name), post_norm, scale, self.eps, self.ops)
