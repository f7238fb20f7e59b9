"""Weight: which parameters of a checkpoint make one of ours, and how it is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

STORAGES = ("numbers",)  # scaled and blocked kinds join once a product takes them


@dataclass(frozen=True, slots=True)
class Weight:
    """The checkpoint's parameters that make one of ours.

    parts: their names. They are laid one behind the other along the first dimension, and come to `shape`.
    transform: what is then made of them; None where they are used as they are.
    wide: the weight is float32, whatever the model's dtype is.
    storage: how the weight is kept in memory, one of STORAGES; plain numbers are the only kind so far.
    axis: the dimension of `shape` along which several devices may share the weight out; None where each device keeps
    all of it. No load shares weights out so far.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    wide: bool = False
    storage: str = "numbers"
    axis: int | None = None

    def __post_init__(self) -> None:
        if self.storage not in STORAGES:
            raise ValueError(f"storage is {self.storage!r}; known are {', '.join(STORAGES)}")
        if self.axis is not None and not 0 <= self.axis < len(self.shape):
            raise ValueError(f"axis is {self.axis}, but the weight has {len(self.shape)} dimensions")


Plan = dict[str, Weight]  # by our name
