"""Packing a round by compiled code."""

from __future__ import annotations

from array import array

import numpy as np

from ramet.ops.native.loader import Library
from ramet.round import ALIGNED, FIELDS, Round, aligned
from ramet.units import Units, filled


def pack(found: Library, units: Units, multiple: int = 1) -> Round:
    """As `round.pack`, in a fraction of its time: the same round, to the last place of its buffer."""
    units = filled(units, multiple)
    counts, *arrays = units.arrays
    given, data = np.concatenate([counts.ravel(), *arrays], dtype=np.int32), np.empty(_room(units), np.int32)
    spans = array("i", bytes(8 * len(FIELDS)))
    found.held.ramet_pack(given.ctypes.data, len(units), data.ctypes.data, spans.buffer_info()[0])
    n = aligned(spans[-1])
    where = zip(spans[::2], spans[1::2], strict=True)
    return Round(data[:n], dict(zip(FIELDS, where, strict=True)), data[n : n + len(units) + 1])


def _room(units: Units) -> int:
    """int32 places that the buffer takes at most, and what stands behind it."""
    of_segments = 14 * len(units.lengths) + 5 * (len(units.leaves) // 2)
    of_reads = 4 * len(units.read_rows) + len(units.columns)
    of_contexts = len(units.pages) + len(units.forks) + 3 * len(units)
    of_rows = 4 * units.n_tokens + 2 * len(units.slots)
    return of_rows + of_segments + of_reads + of_contexts + len(units) + 1 + (ALIGNED + 1) * len(FIELDS)
