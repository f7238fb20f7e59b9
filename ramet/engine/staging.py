"""A round at fixed addresses: where its arrays lie in the one buffer that every recorded pass reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields

import numpy as np
import torch

from ramet.round import FIELDS, Capacity, Queries, Round, Stream, aligned
from ramet.tree import IntArray

_BY_ROWS = ("tokens", "positions", "whole", "kept_rows", "kept_slots")
_BEHIND = ("read_index", "columns", "offsets", "normalize")  # what the head reads, at its own length
_PADDING = {"kept_slots": -1}
_NONE = np.zeros(0, np.int32)
_STREAM = [f.name for f in fields(Stream)]
Spans = dict[str, tuple[int, int]]  # where each array begins, and what is behind its end


class Layout:
    """The arrays of one capacity. `rooms` are the lists of the recorded ops, by name; those of `by_row`, which have an
    entry for every row of the capacity, are filled up with zeros, and of the others nothing is read behind their end.

    First come the arrays whose room the capacity bounds, filled up with padding; then, as long as they are, the pages
    of the contexts, which a recorded pass finds at a fixed address too, and what the head reads, which runs behind it.
    """

    def __init__(self, capacity: Capacity, rooms: Mapping[str, int], by_row: Collection[str] = ()) -> None:
        sizes = dict.fromkeys(_BY_ROWS, capacity.rows) | {"read_rows": capacity.reads} | dict(rooms)
        self.capacity, self._rooms, self._by_row = capacity, dict(rooms), frozenset(by_row)
        self._spans: Spans = {}
        self.size = 0  # int32 places of all but the pages and what the head reads
        for name, size in sizes.items():
            self._spans[name] = (self.size, self.size + size)
            self.size = aligned(self.size + size)

    def holds(self, needs: Capacity, work: Mapping[str, IntArray]) -> bool:
        """Whether the arrays of a round with these needs fit, `work` being the lists of the recorded ops."""
        if not self.capacity.holds(needs):
            return False
        return all(len(value) <= self._rooms[name] for name, value in work.items())

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
            listed = name in self._rooms
            value = work.get(name, _NONE) if listed else packed[name]
            end = lo + len(value)
            assert end <= hi, f"{name}: {len(value)} places in a room of {hi - lo}"
            buffer[lo:end] = value
            if not listed or name in self._by_row:
                buffer[end:hi] = _PADDING.get(name, 0)
            elif end == lo < hi:
                buffer[lo] = 0  # as many entries
        for name, (lo, hi) in spans.items():
            buffer[lo:hi] = behind[name]

    def stream(self, data: torch.Tensor, rows: torch.Tensor) -> Stream:
        """What a recorded pass reads: views of the device's buffer. rows: 0 1 2 .., as many as the capacity's."""
        view = {name: data[lo:hi] for name, (lo, hi) in self._spans.items()}
        read = Queries(view.pop("read_rows"), data[:0])
        work = {name: view.pop(name) for name in self._rooms}
        every = Queries(rows[: self.capacity.rows], data[:0])
        return _stream(data, every=every, read=read, work=work, context_pages=data[self.size :], **view)


def loose(packed: Round, work: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """The arrays of a round that a capacity leaves unbounded: the pages of contexts, and what the head reads, its lists
    (`work`) the last."""
    return {name: packed[name] for name in ("context_pages", *_BEHIND)} | dict(work)


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
