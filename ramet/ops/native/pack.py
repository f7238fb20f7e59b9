"""Packing a round by compiled code."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ramet.ops.native.loader import library
from ramet.round import ALIGNED, FIELDS, Round, Unit, aligned, filled
from ramet.round import pack as plain_pack
from ramet.tree import BoolArray, IntArray

_SIZES = 11  # int32 places of `Sizes` in pack.cpp


def pack(units: Sequence[Unit], multiple: int = 1) -> Round:
    """As `round.pack`, in a fraction of its time: the same round, to the last place of its buffer."""
    found = library()
    if found is None:
        return plain_pack(units, multiple)
    units = filled(units, multiple)
    arrays: list[IntArray | BoolArray] = []
    sizes: list[int] = []
    for unit in units:
        arrays += _arrays(unit)
        sizes += _sizes(unit)
    given, data = np.concatenate(arrays, dtype=np.int32), np.empty(_room(sizes), np.int32)
    counts, spans = array("i", sizes), array("i", bytes(8 * len(FIELDS)))
    found.held.ramet_pack(
        given.ctypes.data, counts.buffer_info()[0], len(units), data.ctypes.data, spans.buffer_info()[0]
    )
    n = aligned(spans[-1])
    where = zip(spans[::2], spans[1::2], strict=True)
    return Round(data[:n], dict(zip(FIELDS, where, strict=True)), data[n : n + len(units) + 1])


def _arrays(unit: Unit) -> tuple[IntArray | BoolArray, ...]:
    """In the order of `Unit` in pack.cpp."""
    t = unit.tree
    return (
        t.tokens, t.lengths, t.parents, t.blocks, t.read_segments, t.read_rows, t.normalize, t.columns, t.offsets,
        unit.context, unit.forks, unit.slots, unit.leaves.ravel(),
    )  # fmt: skip


def _sizes(unit: Unit) -> tuple[int, ...]:
    """`Sizes` of pack.cpp."""
    t = unit.tree
    return (
        len(t.tokens), len(t.lengths), len(t.read_rows), len(t.columns), len(unit.context), len(unit.forks),
        len(unit.slots), len(unit.leaves), unit.n_context, unit.continues, unit.state,
    )  # fmt: skip


def _room(sizes: list[int]) -> int:
    """int32 places that the buffer takes at most, and what stands behind it."""
    rows, segments, reads, columns, pages, forks, slots, leaves = (sum(sizes[i::_SIZES]) for i in range(8))
    n_units = len(sizes) // _SIZES
    of_segments, of_reads, of_contexts = 14 * segments + 5 * leaves, 4 * reads + columns, pages + forks + 3 * n_units
    return 4 * rows + of_segments + of_reads + of_contexts + 2 * slots + n_units + 1 + (ALIGNED + 1) * len(FIELDS)
