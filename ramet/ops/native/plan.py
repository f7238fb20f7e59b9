"""Making work lists by compiled code: the twins of the ops' `plan` functions, all lists of a round in one call."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ramet.ops.attention import lists as attention
from ramet.ops.gated_delta import lists as gated_delta
from ramet.ops.gated_delta.reference import CHUNK
from ramet.ops.native.loader import Library
from ramet.round import FIELDS, Round
from ramet.tree import IntArray

_TASK_SIZE = 16  # int32 places: kTaskSize of lists.h
_ATTENTION, _DELTA, _CONV, _HEAD = range(4)


@dataclass(frozen=True, slots=True)
class ListTask:
    """One op's `plan` in plan_*.cpp: `values` are the fields of its struct there, `names` its lists in order."""

    values: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.values) <= _TASK_SIZE


def task(op: str, how: Mapping[str, Any]) -> ListTask:
    """The twin of an op's `plan(round, **how)`."""
    return _TASKS[op](**how)


class Lists:
    """The lists of a round that `tasks`, in plan.cpp's form, make in one call, by `names`, which are in their order."""

    def __init__(self, found: Library, tasks: Sequence[ListTask]) -> None:
        self.library, self.n_tasks = found, len(tasks)
        self.tasks = array("i", chain.from_iterable(_filled(t.values) for t in tasks))
        self.names = [name for t in tasks for name in t.names]

    def __call__(self, packed: Round) -> dict[str, IntArray]:
        spans, ends, held = spans_of(packed), array("i", bytes(4 * len(self.names))), self.library.held
        n = held.ramet_plan(
            packed.data.ctypes.data, spans.buffer_info()[0], self.tasks.buffer_info()[0], self.n_tasks,
            ends.buffer_info()[0],
        )  # fmt: skip
        data, begin, found = np.empty(n, np.int32), 0, {}
        held.ramet_planned(data.ctypes.data)
        for name, end in zip(self.names, ends, strict=True):
            if end >= 0:
                found[name], begin = data[begin:end], end
        return found


def spans_of(packed: Round) -> array[int]:
    """Where each field begins and ends."""
    return array("i", chain.from_iterable(packed.spans[name] for name in FIELDS))


def _filled(values: tuple[int, ...]) -> tuple[int, ...]:
    return (*values, *[0] * (_TASK_SIZE - len(values)))


def _attention(
    *, n_heads: int, n_kv_heads: int, head_dim: int, window: int, read: bool, invariant: bool, processors: int
) -> ListTask:
    tiling = attention.QueryTiling.of(n_heads, n_kv_heads, head_dim, processors)
    narrow, wide = (*tiling.widths, 0)[:2]
    narrow_programs, wide_programs = (*tiling.programs, 0)[:2]
    prefix = attention.name(n_heads, n_kv_heads, head_dim, window=window, read=read, invariant=invariant)
    lists = ("runs", "segments", "joins", *(f"items{width}" for width in tiling.widths))
    return ListTask(
        (
            _ATTENTION, n_heads, n_kv_heads, narrow, wide, narrow_programs, wide_programs, processors,
            tiling.max_pieces, tiling.max_slots, attention.KEYS, attention.SPAN, attention.MIN_BLOCKS, window, read,
            invariant,
        ),
        tuple(f"{prefix}/{name}" for name in lists),
    )  # fmt: skip


def _delta() -> ListTask:
    names = ("delta/tiles", "delta/walk", "delta/forks", "delta/chunks")
    return ListTask((_DELTA, CHUNK, gated_delta.BLOCK, gated_delta.CARRIES), names)


def _conv(*, width: int) -> ListTask:
    return ListTask((_CONV, width), ("conv/before", "conv/after"))


def _head() -> ListTask:
    return ListTask((_HEAD,), ("head/rows", "head/normalized", "head/slots"))


_TASKS: dict[str, Callable[..., ListTask]] = {
    "attention": _attention, "gated_delta": _delta, "conv": _conv, "head": _head,
}  # fmt: skip
