"""A round at fixed addresses: where its arrays lie in the one buffer that every recorded pass reads."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import torch

from ramet.ops.native.plan import Lists, spans_of
from ramet.round import FIELDS, Capacity, Queries, Round, Stream, aligned
from ramet.tree import IntArray

_BY_ROWS = ("tokens", "positions", "whole", "kept_rows", "kept_slots")
# At their own length: the pages of contexts, and what the head reads.
BEHIND = ("context_pages", "read_index", "columns", "offsets", "normalize")
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
    ascending, that holds it. One call of compiled code."""

    def __init__(self, lists: Lists, layouts: Sequence[Layout]) -> None:
        self._layouts = layouts
        self._stage, rooms = lists.library.held.ramet_stage, list(layouts[-1].rooms)
        assert all([name for name in rooms if name in each.rooms] == list(each.rooms) for each in layouts)
        outside = [name for name in lists.names if name not in rooms]
        self._behind = (*BEHIND, *outside)
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
        """None where no layout holds it, or the buffer ends before it does."""
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
        self.spans: Spans = {}
        self.size = 0  # int32 places of all but the pages and what the head reads
        for name, size in sizes.items():
            self.spans[name] = (self.size, self.size + size)
            self.size = aligned(self.size + size)

    def stream(self, data: torch.Tensor, rows: torch.Tensor) -> Stream:
        """What a recorded pass reads: views of the device's buffer. rows: 0 1 2 .., as many as the capacity's."""
        view = {name: data[lo:hi] for name, (lo, hi) in self.spans.items()}
        read = Queries(view.pop("read_rows"), data[:0])
        work = {name: view.pop(name) for name in self.rooms}
        every = Queries(rows[: self.capacity.rows], data[:0])
        return _stream(data, every=every, read=read, work=work, context_pages=data[self.size :], **view)


def _numbers(layout: Layout, rooms: Sequence[str]) -> list[int]:
    """Of a layout, as stage.cpp takes it."""
    return [layout.capacity.rows, layout.capacity.reads, *(layout.rooms.get(name, -1) for name in rooms)]


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
