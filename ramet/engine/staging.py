"""A round at fixed addresses: where its arrays lie in the one buffer that every recorded pass reads."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import torch

from ramet.ops.native.plan import spans_of
from ramet.ops.planning import Plans
from ramet.round import FIELDS, Capacity, Queries, Round, Stream, aligned
from ramet.tree import IntArray

_BY_ROWS = ("tokens", "positions", "whole", "kept_rows", "kept_slots")
# At their own length: the pages of contexts, and what the head reads.
_BEHIND = ("context_pages", "read_index", "columns", "offsets", "normalize")
_PADDING = {"kept_slots": -1}
_NONE = np.zeros(0, np.int32)
_STREAM = [f.name for f in fields(Stream)]
Spans = dict[str, tuple[int, int]]  # where each array begins, and what is behind its end


@dataclass(frozen=True, slots=True)
class Staged:
    """A round in a buffer: in which layout, how many places are used, and where its loose arrays lie."""

    layout: Layout
    used: int
    spans: Spans


class Staging:
    """Makes the lists of rounds, and writes rounds with their lists into buffers: each in the first of the layouts,
    ascending, that holds it."""

    def __init__(self, plans: Plans, layouts: Sequence[Layout]) -> None:
        self._plans, self._layouts = plans, layouts

    def __call__(self, packed: Round, buffer: IntArray) -> Staged | None:
        """None where no layout holds it, or the buffer ends before it does."""
        work, lists = self._plans(packed)
        needs = packed.needs
        layout = next((each for each in self._layouts if each.holds(needs, work)), None)
        if layout is None:
            return None
        behind = loose(packed, lists)
        spans, used = layout.places(behind)
        if used > len(buffer):
            return None
        layout.fill(buffer, packed, work, behind, spans)
        return Staged(layout, used, spans)


class CompiledStaging(Staging):
    """As Staging, in one call of compiled code. Of plans that have some."""

    def __init__(self, plans: Plans, layouts: Sequence[Layout]) -> None:
        super().__init__(plans, layouts)
        lists = plans.compiled
        assert lists is not None
        self._stage, rooms = lists.library.held.ramet_stage, list(layouts[-1].rooms)
        assert all([name for name in rooms if name in each.rooms] == list(each.rooms) for each in layouts)
        outside = [name for name in lists.names if name not in rooms]
        self._behind = (*_BEHIND, *outside)
        places = {name: i for i, name in enumerate(lists.names)}
        self._held = (  # by their addresses
            lists.tasks,
            array("i", chain.from_iterable(_numbers(each, rooms) for each in layouts)),
            array("i", [places.get(name, -1) for name in (*rooms, *outside)]),
            array("i", [name in layouts[-1].by_row for name in rooms]),
        )
        sizes = (lists.n_tasks, len(layouts), len(rooms), len(rooms) + len(outside), len(lists.names))
        self._state = array("q", [*(each.buffer_info()[0] for each in self._held), *sizes])

    def __call__(self, packed: Round, buffer: IntArray) -> Staged | None:
        spans, found = spans_of(packed), array("i", bytes(4 * (1 + 2 * len(self._behind))))
        which = self._stage(
            self._state.buffer_info()[0], packed.data.ctypes.data, spans.buffer_info()[0], buffer.ctypes.data,
            len(buffer), found.buffer_info()[0],
        )  # fmt: skip
        if which < 0:
            return None
        ends = zip(found[1::2], found[2::2], strict=True)
        return Staged(self._layouts[which], found[0], dict(zip(self._behind, ends, strict=True)))


class Layout:
    """The arrays of one capacity. `rooms` are the lists of the recorded ops, by name; those of `by_row`, which have an
    entry for every row of the capacity, are filled up with zeros, and of the others nothing is read behind their end.

    First come the arrays whose room the capacity bounds, filled up with padding; then, as long as they are, the pages
    of the contexts, which a recorded pass finds at a fixed address too, and what the head reads, which runs behind it.
    """

    def __init__(self, capacity: Capacity, rooms: Mapping[str, int], by_row: Collection[str] = ()) -> None:
        sizes = dict.fromkeys(_BY_ROWS, capacity.rows) | {"read_rows": capacity.reads} | dict(rooms)
        self.capacity, self.rooms, self.by_row = capacity, dict(rooms), frozenset(by_row)
        self._spans: Spans = {}
        self.size = 0  # int32 places of all but the pages and what the head reads
        for name, size in sizes.items():
            self._spans[name] = (self.size, self.size + size)
            self.size = aligned(self.size + size)

    def holds(self, needs: Capacity, work: Mapping[str, IntArray]) -> bool:
        """Whether the arrays of a round with these needs fit, `work` being the lists of the recorded ops."""
        if not self.capacity.holds(needs):
            return False
        return all(len(value) <= self.rooms[name] for name, value in work.items())

    def places(self, behind: Mapping[str, IntArray]) -> tuple[Spans, int]:
        """Where the arrays lie that have no room of their own, which `loose` gives; and what is behind the last."""
        spans, at = {}, self.size
        for name, value in behind.items():
            spans[name] = (at, at + len(value))
            at = aligned(at + len(value))
        return spans, at

    def fill(
        self, buffer: IntArray, packed: Round, work: Mapping[str, IntArray], behind: Mapping[str, IntArray],
        spans: Spans,
    ) -> None:  # fmt: skip
        """Write a round into a buffer, the arrays of `behind` to their places `spans`. work: the lists of the recorded
        ops, of which some may be missing, and are then empty."""
        for name, (lo, hi) in self._spans.items():
            listed = name in self.rooms
            value = work.get(name, _NONE) if listed else packed[name]
            end = lo + len(value)
            assert end <= hi, f"{name}: {len(value)} places in a room of {hi - lo}"
            buffer[lo:end] = value
            if not listed or name in self.by_row:
                buffer[end:hi] = _PADDING.get(name, 0)
            elif end == lo < hi:
                buffer[lo] = 0  # as many entries
        for name, (lo, hi) in spans.items():
            buffer[lo:hi] = behind[name]

    def stream(self, data: torch.Tensor, rows: torch.Tensor) -> Stream:
        """What a recorded pass reads: views of the device's buffer. rows: 0 1 2 .., as many as the capacity's."""
        view = {name: data[lo:hi] for name, (lo, hi) in self._spans.items()}
        read = Queries(view.pop("read_rows"), data[:0])
        work = {name: view.pop(name) for name in self.rooms}
        every = Queries(rows[: self.capacity.rows], data[:0])
        return _stream(data, every=every, read=read, work=work, context_pages=data[self.size :], **view)


def _numbers(layout: Layout, rooms: Sequence[str]) -> list[int]:
    """Of a layout, as stage.cpp takes it."""
    return [layout.capacity.rows, layout.capacity.reads, *(layout.rooms.get(name, -1) for name in rooms)]


def loose(packed: Round, work: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """The arrays of a round that a capacity leaves unbounded: the pages of contexts, and what the head reads, its lists
    (`work`) the last."""
    return {name: packed[name] for name in _BEHIND} | dict(work)


def outside(data: torch.Tensor, spans: Spans) -> Stream:
    """What the head reads of a round, of whose loose arrays these are the spans."""
    view = {name: data[lo:hi] for name, (lo, hi) in spans.items()}
    return _stream(data, work={name: view.pop(name) for name in spans if name not in FIELDS}, **view)


def _stream(data: torch.Tensor, **given: object) -> Stream:
    """A Stream of which some arrays are given; the others are empty."""
    empty = data[:0]
    none = Queries(empty, empty)
    nothing = {**dict.fromkeys(_STREAM, empty), "every": none, "read": none, "work": {}}
    return Stream(**{**nothing, **given})  # type: ignore[arg-type]
