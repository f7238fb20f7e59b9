"""Random weights of a true shape, made in seconds: every tensor is a piece of one block of random numbers."""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Any

import torch

from ramet.families.weight import Plan

_SPREAD = 0.02  # the standard deviation of a weight
_DRAWN = 16_777_213  # random numbers, which fill the block again and again; a prime: rows of an embedding do not repeat
_STRIDE = 1_368_787  # from one tensor's beginning to the next one's, also a prime
_SPARE = 1 << 22  # numbers of the block beyond the largest tensor
_ALIGNED = 64  # numbers


class RandomWeights(dict[str, torch.Tensor]):
    """The weights of a plan, by our names. Looking at a weight gives a view of one block; `pop` gives memory of its
    own, so that no two layers of a model read the same bytes, and nothing is there twice.

    Vectors, which are norms and scales, are ones, but for the norms of queries and keys: they leave scores with a
    spread of about one, as a trained model's do. rounded: the dtype that numbers are rounded to first (None: `dtype`),
    so that a model in float32 has the weights of one in bfloat16. `fingerprint` says what they were made from.
    """

    def __init__(
        self, plan: Plan, dtype: torch.dtype, device: torch.device, seed: int = 0, rounded: torch.dtype | None = None
    ) -> None:
        self._plan = plan
        made_from = [(ours, weight.parts, weight.shape, weight.wide) for ours, weight in plan.items()]
        whole = ("random", made_from, dtype, device.type, seed, rounded)
        self.fingerprint = sha256(repr(whole).encode()).hexdigest()[:32]
        self._places = {
            theirs: (ours, place, len(weight.parts))
            for ours, weight in plan.items()
            for place, theirs in enumerate(weight.parts)
        }
        sizes = {weight.parts: math.prod(weight.shape) for weight in plan.values()}  # some of ours are cut from one
        self.n_parameters = sum(sizes.values())
        self.n_bytes = self.n_parameters * dtype.itemsize
        self._rounded = rounded or dtype
        self._block = _block(max(sizes.values()) + _SPARE, dtype, device, seed, self._rounded)
        starts = {parts: i * _STRIDE % _SPARE // _ALIGNED * _ALIGNED for i, parts in enumerate(sizes)}
        self._starts = {ours: starts[weight.parts] for ours, weight in plan.items()}
        super().__init__({ours: self.view(ours) for ours in plan})

    def view(self, name: str) -> torch.Tensor:
        """One of the plan's weights as a checkpoint has it, also when `pop` has taken it out."""
        shape = self._plan[name].shape
        if len(shape) == 1:
            value = shape[0] ** -0.25 if name.endswith((".q_norm", ".k_norm")) else 1.0
            return torch.full(shape, value, dtype=self._rounded, device=self._block.device).to(self._block.dtype)
        start = self._starts[name]
        return self._block[start : start + math.prod(shape)].view(shape)

    def part(self, theirs: str) -> torch.Tensor:
        """A view of what a checkpoint has under one of its own names."""
        ours, place, n_parts = self._places[theirs]
        return self.view(ours).chunk(n_parts)[place]

    @property
    def device(self) -> torch.device:
        return self._block.device

    @property
    def parts(self) -> frozenset[str]:
        """The names that a checkpoint has."""
        return frozenset(self._places)

    def pop(self, name: str, *default: Any) -> Any:
        """A tensor in memory of its own."""
        if name not in self:
            return super().pop(name, *default)
        weight = self._plan[name]
        found = super().pop(name)
        made = found.float() if weight.wide else found.clone()
        return made if weight.transform is None else weight.transform(made)


def _block(n: int, dtype: torch.dtype, device: torch.device, seed: int, rounded: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.randn(min(n, _DRAWN), generator=generator, device=device).mul_(_SPREAD).to(rounded).to(dtype)
    block = torch.empty(n, dtype=dtype, device=device)
    for start in range(0, n, len(drawn)):
        piece = block[start : start + len(drawn)]
        piece.copy_(drawn[: len(piece)])
    return block
