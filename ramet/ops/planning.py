"""Work lists: what kernels of fixed launches take their work from, made on the host from a round's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from ramet.ops.conv.plan import BY_ROW
from ramet.ops.native import library
from ramet.ops.native.plan import Lists, Task, task
from ramet.round import Capacity, Round
from ramet.tree import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Planner:
    """Makes the lists that one op needs for one kind of layer: `plan` those of a round, by name; `room` how long each
    may get at a capacity. `inside`: whether the op runs in the recorded part of a pass. `task` is the compiled twin of
    `plan`. The lists of `by_row` have an entry for every row of a capacity; of the others nothing is read behind what
    `plan` makes."""

    plan: Callable[[Round], dict[str, IntArray]]
    room: Callable[[Capacity], dict[str, int]]
    task: Task
    inside: bool = True
    by_row: tuple[str, ...] = ()


class Plans:
    """Makes the lists of several planners: in one call of compiled code, or one by one where there is no compiler."""

    def __init__(self, planners: Sequence[Planner]) -> None:
        found = library() if planners else None
        self._planners = planners
        self.compiled = None if found is None else Lists(found, [p.task for p in planners])
        self._outside = frozenset(name for p in planners if not p.inside for name in p.task.names)

    def __call__(self, packed: Round) -> tuple[dict[str, IntArray], dict[str, IntArray]]:
        """The lists of a round, by name: of the ops in the recorded part of a pass, and of the others."""
        inside: dict[str, IntArray] = {}
        outside: dict[str, IntArray] = {}
        for name, value in self._made(packed).items():
            (outside if name in self._outside else inside)[name] = value
        return inside, outside

    def _made(self, packed: Round) -> dict[str, IntArray]:
        if self.compiled is not None:
            return self.compiled(packed)
        return {name: value for planner in self._planners for name, value in planner.plan(packed).items()}


@dataclass(frozen=True, slots=True, eq=False)
class Planning:
    """The planners of the ops whose implementations, `modules` by name, work from lists."""

    modules: Mapping[str, ModuleType]
    processors: int
    invariant: bool

    def attention(
        self, *, n_heads: int, n_kv_heads: int, head_dim: int, window: int, read: bool
    ) -> dict[object, Planner]:
        """Of the layers with these heads and this window; `read`: whose queries are the rows that are read."""
        shape = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim, "window": window, "read": read}
        how = {"invariant": self.invariant, "processors": self.processors}
        return self._of("attention", shape | how)

    def recurrent(self, width: int) -> dict[object, Planner]:
        """Of the recurrent layers, whose convolutions have this width."""
        conv = self._of("conv", {"width": width}, by_row=BY_ROW)
        return conv | self._of("gated_delta", {})

    def head(self) -> dict[object, Planner]:
        return self._of("head", {}, inside=False)

    def _of(
        self, op: str, how: Mapping[str, Any], *, inside: bool = True, by_row: tuple[str, ...] = ()
    ) -> dict[object, Planner]:
        module = self.modules.get(op)
        if module is None:
            return {}
        plan, room = partial(module.plan, **how), partial(module.room, **how)
        return {(op, *sorted(how.items())): Planner(plan, room, task(op, how), inside, by_row)}
