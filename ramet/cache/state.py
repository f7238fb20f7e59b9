"""Recurrent states in slots: the tensors behind the slot numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Recurrent:
    """One recurrent layer's states.

    window [n_slots, W-1, C]: the convolution's last W-1 inputs, oldest first, zeros before the first token.
    state [n_slots, H, Dk, Dv] float32: the gated delta rule's.
    """

    window: torch.Tensor
    state: torch.Tensor
