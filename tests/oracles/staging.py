"""A round in a buffer of fixed places, in Python: what native/stage.cpp is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from oracles.lists import lists_of

from ramet.engine.staging import BEHIND, Layout, Spans, Staged
from ramet.ops.planning import Planner
from ramet.round import Capacity, Round, aligned
from ramet.tree import IntArray

_PADDING = {"kept_slots": -1}
_NONE = np.zeros(0, np.int32)


class PlainStaging:
    """As Staging."""

    def __init__(self, planners: Sequence[Planner], layouts: Sequence[Layout]) -> None:
        self._planners, self._layouts = planners, layouts

    def __call__(self, packed: Round, buffer: IntArray) -> Staged | None:
        work, heads = parted(self._planners, packed)
        needs = packed.needs
        layout = next((each for each in self._layouts if holds(each, needs, work)), None)
        if layout is None:
            return None
        behind = loose(packed, heads)
        spans, used = places(layout, behind)
        if used > len(buffer):
            return None
        fill(layout, buffer, packed, work, behind, spans)
        return Staged(layout, used, spans)


def parted(planners: Sequence[Planner], packed: Round) -> tuple[dict[str, IntArray], dict[str, IntArray]]:
    """The lists of the ops in the recorded part of a pass, and of the others."""
    inside, outside = ([p for p in planners if p.inside is recorded] for recorded in (True, False))
    return lists_of(inside, packed), lists_of(outside, packed)


def holds(layout: Layout, needs: Capacity, work: Mapping[str, IntArray]) -> bool:
    """Whether the arrays of a round with these needs fit, `work` being the lists of the recorded ops."""
    if not layout.capacity.holds(needs):
        return False
    return all(len(value) <= layout.rooms[name] for name, value in work.items())


def loose(packed: Round, heads: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """The arrays of a round that a capacity leaves unbounded: the pages of contexts, and what the head reads, its lists
    the last."""
    return {name: packed[name] for name in BEHIND} | dict(heads)


def places(layout: Layout, behind: Mapping[str, IntArray]) -> tuple[Spans, int]:
    """Where the arrays lie that have no room of their own, which `loose` gives; and what is behind the last."""
    spans, at = {}, layout.size
    for name, value in behind.items():
        spans[name] = (at, at + len(value))
        at = aligned(at + len(value))
    return spans, at


def fill(
    layout: Layout, buffer: IntArray, packed: Round, work: Mapping[str, IntArray], behind: Mapping[str, IntArray],
    spans: Spans,
) -> None:  # fmt: skip
    """Write a round into a buffer, the arrays of `behind` to their places `spans`. work: the lists of the recorded ops,
    of which some may be missing, and are then empty."""
    for name, (lo, hi) in layout.spans.items():
        listed = name in layout.rooms
        value = work.get(name, _NONE) if listed else packed[name]
        end = lo + len(value)
        assert end <= hi, f"{name}: {len(value)} places in a room of {hi - lo}"
        buffer[lo:end] = value
        if not listed or name in layout.by_row:
            buffer[end:hi] = _PADDING.get(name, 0)
        elif end == lo < hi:
            buffer[lo] = 0  # as many entries
    for name, (lo, hi) in spans.items():
        buffer[lo:hi] = behind[name]
