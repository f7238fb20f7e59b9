"""Work lists: what kernels of fixed launches take their work from, made on the host from a round's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from ramet.ops.conv.lists import BY_ROW
from ramet.ops.native.plan import ListTask, task
from ramet.round import Capacity


@dataclass(frozen=True, slots=True, eq=False)
class Planner:
    """The lists that one op needs for one kind of layer, which `how` describes. task: what compiled code makes them by.
    room: how long each gets at most at a capacity. inside: whether the op runs in the recorded part of a pass. The
    lists of `by_row` have an entry for every row of a capacity; of the others nothing is read behind their end."""

    op: str
    how: Mapping[str, Any]
    task: ListTask
    room: Callable[[Capacity], dict[str, int]]
    inside: bool = True
    by_row: tuple[str, ...] = ()


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
        room = partial(module.room, **how)
        return {(op, *sorted(how.items())): Planner(op, how, task(op, how), room, inside, by_row)}
