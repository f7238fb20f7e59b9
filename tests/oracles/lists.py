"""All work lists of a round, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oracles import attention_lists, conv_lists, delta_lists, head_lists

from ramet.ops.planning import Planner
from ramet.round import Round
from ramet.tree import IntArray

PLAIN: dict[str, Callable[..., dict[str, IntArray]]] = {
    "attention": attention_lists.plan,
    "gated_delta": delta_lists.plan,
    "conv": conv_lists.plan,
    "head": head_lists.plan,
}


def lists_of(planners: Sequence[Planner], packed: Round) -> dict[str, IntArray]:
    return {name: value for p in planners for name, value in PLAIN[p.op](packed, **p.how).items()}
