"""What families with experts have in common: how many are chosen, and the names of their weights."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from pydantic import PositiveInt

from ramet.config_schema import ConfigSchema
from ramet.errors import CheckpointError
from ramet.families.weight import Plan, Weight


class ExpertsSchema(ConfigSchema):
    """The keys of all models whose rows choose experts."""

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    norm_topk_prob: bool


def experts_chosen(config: Any) -> tuple[int, int]:
    """num_experts and num_experts_per_tok. Raises CheckpointError."""
    n_experts, n_chosen = config.num_experts, config.num_experts_per_tok
    if not 0 < n_chosen <= n_experts:
        raise CheckpointError(f"config.json: num_experts_per_tok is {n_chosen}, of num_experts {n_experts}")
    return n_experts, n_chosen


def experts_plan(at: str, n_experts: int, size: int, hidden: int, names: Collection[str]) -> Plan:
    """gate_up_experts [E, 2 I, C] and down_experts [E, C, I] below `at`: each in one parameter, gates and ups in one
    each, or, as in most checkpoints that are published, a parameter for each expert's."""
    if f"{at}.gate_up_proj" in names:
        return {
            "gate_up_experts": Weight((f"{at}.gate_up_proj",), (n_experts, 2 * size, hidden)),
            "down_experts": Weight((f"{at}.down_proj",), (n_experts, hidden, size)),
        }
    if f"{at}.gate_proj" in names:
        halves = (f"{at}.gate_proj", f"{at}.up_proj")
        return {
            "gate_up_experts": Weight(halves, (2 * n_experts, size, hidden), partial(_paired, n_experts)),
            "down_experts": Weight((f"{at}.down_proj",), (n_experts, hidden, size)),
        }
    if 3 * n_experts > len(names):  # before so many are named
        raise CheckpointError(
            f"config.json: num_experts is {n_experts}, more than the {len(names)} tensors in the files"
        )
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


def _paired(n_experts: int, weight: torch.Tensor) -> torch.Tensor:
    """All gates and then all ups, [2 E, I, C], as each expert's gate and up."""
    return weight.view(2, n_experts, *weight.shape[1:]).transpose(0, 1).flatten(1, 2)
