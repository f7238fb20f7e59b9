"""Laying: a step of live replies, as the units that a round takes."""

from __future__ import annotations

import numpy as np

from ramet.cache.tables import Tables
from ramet.denoise.running import Chunks
from ramet.ops.native.arrays import address, addresses, cut
from ramet.ops.native.loader import Library
from ramet.tree import WHOLE, IntArray
from ramet.units import COUNTS, Units

_NONE = np.zeros(0, np.int32)


def plain_lay(
    tables: Tables, chunks: Chunks, begun: IntArray | None = None, states: IntArray | None = None
) -> Units | None:
    """The chunks behind what is in pages of their replies, their first rows kept in the next slots: see `laid_out`.
    None where pages have run out. The paths have these rows once `tables.advance` says so; until then the same slots
    are given again."""
    slots = tables.extend(chunks.places, chunks.n_kept)
    if slots is None:
        return None
    return laid_out(chunks, *tables.context(chunks.places), slots, begun, states)


def compiled_lay(
    found: Library, tables: Tables, chunks: Chunks, begun: IntArray | None = None, states: IntArray | None = None
) -> Units | None:
    """As `plain_lay`, by compiled code."""
    units = _compiled(found, tables, chunks, begun, states)
    if units is None and tables.reserve(chunks.places, chunks.n_kept):
        units = _compiled(found, tables, chunks, begun, states)
    return units


def _compiled(
    found: Library, tables: Tables, chunks: Chunks, begun: IntArray | None, states: IntArray | None
) -> Units | None:
    """None where a path lacks a page."""
    n, n_segments, n_reads, table = len(chunks.places), len(chunks.lengths), len(chunks.reads), tables.numbers
    n_leaves, width = 0 if states is None else 2 * n, table.shape[1]
    rooms = (n * len(COUNTS), n_segments, n_segments, n_reads, n_reads, len(chunks.tokens), n_leaves, n * width)
    data, sums = np.empty(sum(rooms), np.int32), np.empty(2, np.int32)
    counts, parents, blocks, segments, rows, slots, leaves, pages = made = cut(data, rooms)
    paths = np.array([*addresses(tables.n_rows, tables.n_pages, table), width, tables.pages.page_size], np.int64)
    step = addresses(
        chunks.places, chunks.n_rows, chunks.n_kept, chunks.n_segments, chunks.n_reads, chunks.lengths, chunks.reads,
        begun, states,
    )  # fmt: skip
    if not found.held.ramet_lay(address(paths), address(step), n, address(addresses(*made)), address(sums)):
        return None
    n_slots, n_pages = sums.tolist()
    zeros = np.zeros(max(n, n_reads), np.int32)
    return Units(
        counts=counts.reshape(n, -1), tokens=chunks.tokens, positions=chunks.positions, lengths=chunks.lengths,
        parents=parents, blocks=blocks, read_segments=segments, read_rows=rows, normalize=zeros[:n_reads],
        columns=_NONE, widths=zeros[:n_reads], pages=pages[:n_pages], forks=zeros[:n], slots=slots[:n_slots],
        leaves=leaves,
    )  # fmt: skip


def laid_out(
    chunks: Chunks, n_context: IntArray, n_pages: IntArray, pages: IntArray, slots: IntArray,
    begun: IntArray | None = None, states: IntArray | None = None,
) -> Units:  # fmt: skip
    """Chunks as units: each follows its context, and its first rows go to `slots`. begun, states: slots of the
    recurrent states that each begins from and leaves behind its last row."""
    n, n_segments = len(chunks.places), chunks.n_segments
    first = np.cumsum(n_segments) - n_segments  # each unit's first segment
    parents = np.full(len(chunks.lengths), -1, np.int32)
    parents[first[n_segments > 1] + 1] = 0
    starts = np.cumsum(chunks.lengths) - chunks.lengths
    segment = np.searchsorted(starts, chunks.reads, side="right") - 1
    unit_of = np.repeat(np.arange(n), n_segments)
    leaves = np.zeros((0, 2), np.int32)
    if begun is not None and states is not None:
        leaves = np.stack([chunks.n_rows - 1, states], 1).astype(np.int32)
    counts = np.zeros((n, 11), np.int32)
    counts[:, 0], counts[:, 1], counts[:, 2] = chunks.n_rows, n_segments, chunks.n_reads
    counts[:, 4], counts[:, 5], counts[:, 6], counts[:, 7] = n_pages, 1, chunks.n_kept, begun is not None
    counts[:, 8], counts[:, 10] = n_context, -1 if begun is None else begun
    return Units(
        counts=counts, tokens=chunks.tokens, positions=chunks.positions, lengths=chunks.lengths, parents=parents,
        blocks=np.full(len(parents), WHOLE, np.int32),
        read_segments=(segment - first[unit_of[segment]]).astype(np.int32),
        read_rows=(chunks.reads - starts[segment]).astype(np.int32), normalize=np.zeros(len(segment), np.int32),
        columns=np.zeros(0, np.int32), widths=np.zeros(len(segment), np.int32), pages=pages,
        forks=np.zeros(n, np.int32), slots=slots, leaves=leaves.ravel(),
    )  # fmt: skip
