"""The names of experts' weights: all of a layer in one parameter, or a parameter each."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch

from ramet.families.family import Plan, Weight


def experts_plan(at: str, n_experts: int, size: int, hidden: int, names: Collection[str]) -> Plan:
    """gate_up_experts [E, 2 I, C] and down_experts [E, C, I] below `at`, named as transformers saves them or, in older
    checkpoints, one by one."""
    if f"{at}.gate_up_proj" in names:
        return {
            "gate_up_experts": Weight((f"{at}.gate_up_proj",), (n_experts, 2 * size, hidden)),
            "down_experts": Weight((f"{at}.down_proj",), (n_experts, hidden, size)),
        }
    stack = partial(_stacked, n_experts)
    gate_up = [f"{at}.{e}.{part}.weight" for e in range(n_experts) for part in ("gate_proj", "up_proj")]
    down = [f"{at}.{e}.down_proj.weight" for e in range(n_experts)]
    return {
        "gate_up_experts": Weight(tuple(gate_up), (n_experts * 2 * size, hidden), stack),
        "down_experts": Weight(tuple(down), (n_experts * hidden, size), stack),
    }


def _stacked(n_experts: int, weight: torch.Tensor) -> torch.Tensor:
    """Experts laid one behind the other, as a dimension of their own."""
    return weight.view(n_experts, -1, weight.shape[1])
