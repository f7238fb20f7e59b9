"""Muon: momentum whose matrices are made orthogonal, all of one shape at once (Jordan et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Muon:
    """For the matrices inside of layers. `rate` is set from outside before each step."""

    def __init__(self, weights: Iterable[torch.nn.Parameter], *, momentum: float = 0.95, decay: float = 0.02) -> None:
        self.rate = 0.0
        self._momentum, self._decay = momentum, decay
        groups: dict[torch.Size, list[torch.Tensor]] = {}
        for weight in weights:
            groups.setdefault(weight.shape, []).append(weight)
        self._groups = [(each, torch.zeros(len(each), *shape, device=each[0].device)) for shape, each in groups.items()]

    @torch.no_grad()
    def step(self) -> None:
        for weights, kept in self._groups:
            gradients = torch.stack([_gradient(weight) for weight in weights])
            kept.lerp_(gradients, 1 - self._momentum)
            change = orthogonal(gradients.lerp_(kept, self._momentum))
            wide = max(1.0, change.shape[1] / change.shape[2]) ** 0.5
            torch._foreach_mul_(weights, 1 - self.rate * self._decay)
            torch._foreach_add_(weights, list(change.to(weights[0].dtype).unbind()), alpha=-self.rate * wide)


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def orthogonal(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Nearly, of [K, M, N]: all singular values about 1, by Newton and Schulz's iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    made: torch.Tensor = x.mT if tall else x
    return made
