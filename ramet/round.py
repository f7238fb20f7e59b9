"""Round and pack(): the units of many requests become the arrays of one pass, here alone.

A Round is the trees of many units laid end to end in one flat stream of T rows, described by one int32 buffer that is
uploaded at once. A Stream is that buffer on a device, cut into views.

Names: T rows, S segments, Q pieces, X contexts, N queries, R reads, U units.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from ramet.tree import WHOLE, IntArray, Reads
from ramet.units import Units, filled

ALIGNED = 4  # int32 places: every array of a round begins at a multiple of 16 bytes


def aligned(at: int) -> int:
    """The first place from `at` on at which an array may begin."""
    return -(-at // ALIGNED) * ALIGNED


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Rows that attend. rows [N] are their places in the stream, ascending; those of segment s are
    rows[bounds[s] : bounds[s + 1]], with bounds [S+1]."""

    rows: torch.Tensor
    bounds: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A round on a device; every field int32.

    tokens, positions [T]: rotary embeddings rotate a row by its position, which is its place in its path; rows of a
    WHOLE segment may have any. whole [T]: 1 for the rows of a segment whose block is WHOLE (a recorded pass knows rows,
    but no segments). Segments [S]: starts, lengths, parents (-1: none), blocks, contexts
    (-1: none; the same for all segments of a unit), origins (position of the first row), anchors (the position
    from which a segment's keys are counted off in blocks: its origin, or less for a root that continues its
    context's last segment). Contexts [X]: context_pages [P] cut by context_offsets [X+1], context_lengths [X] in
    rows, context_forks [F] cut by context_fork_offsets [X+1]. kept_rows, kept_slots [K]. `every` has all rows as
    queries, `read` those that are read.

    Recurrent layers go through pieces [Q]: segments, cut after each row whose state is kept, in the stream's order. A
    piece begins from the final state of piece_parents (-1: none), or from the state in the slot piece_from (-1: its
    parent's, or zeros); its final state goes to the slot piece_to (-1: nowhere). No slot is both read and written.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    whole: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    parents: torch.Tensor
    blocks: torch.Tensor
    contexts: torch.Tensor
    origins: torch.Tensor
    anchors: torch.Tensor
    context_pages: torch.Tensor
    context_offsets: torch.Tensor
    context_lengths: torch.Tensor
    context_forks: torch.Tensor
    context_fork_offsets: torch.Tensor
    piece_starts: torch.Tensor
    piece_lengths: torch.Tensor
    piece_parents: torch.Tensor
    piece_from: torch.Tensor
    piece_to: torch.Tensor
    kept_rows: torch.Tensor
    kept_slots: torch.Tensor
    every: Queries
    read: Queries
    read_index: torch.Tensor  # [R] which of the read queries each read is of
    columns: torch.Tensor  # [C]
    offsets: torch.Tensor  # [R+1] into columns
    normalize: torch.Tensor  # [R'] 1 where a read query needs its logsumexp over the vocabulary
    work: Mapping[str, torch.Tensor] = field(default_factory=dict)  # lists that an implementation made for itself


FIELDS = (
    "tokens", "positions", "whole", "starts", "lengths", "parents", "blocks", "contexts", "origins", "anchors",
    "context_pages", "context_offsets", "context_lengths", "context_forks", "context_fork_offsets",
    "piece_starts", "piece_lengths", "piece_parents", "piece_from", "piece_to", "kept_rows", "kept_slots",
    "every_rows", "every_bounds", "read_rows", "read_bounds", "read_index", "columns", "offsets", "normalize",
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Capacity:
    """The most that a pass of fixed launches holds: rows, read rows, and pieces that leave a state to others."""

    rows: int
    reads: int
    forks: int

    def holds(self, other: Capacity) -> bool:
        """Whether this capacity holds as many rows. Only the work lists of recurrent layers limit states."""
        return self.rows >= other.rows and self.reads >= other.reads


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The packed arrays on the host: one int32 buffer, and where each field lies in it."""

    data: IntArray
    spans: dict[str, tuple[int, int]]
    unit_reads: IntArray  # [U+1] the reads of unit u are unit_reads[u] : unit_reads[u + 1]

    def __getitem__(self, name: str) -> IntArray:
        lo, hi = self.spans[name]
        return self.data[lo:hi]

    @property
    def n_tokens(self) -> int:
        return len(self["tokens"])

    @property
    def needs(self) -> Capacity:
        """The least capacity that holds this round."""
        kept = self["piece_to"] >= 0
        kept[self["piece_parents"][self["piece_parents"] >= 0]] = True
        forks = int(np.count_nonzero(kept))
        return Capacity(self.n_tokens, len(self["read_rows"]), forks)

    def with_work(self, work: Mapping[str, IntArray]) -> Round:
        """The round with further arrays, which become Stream.work: the work lists of kernels."""
        return _buffer({**{name: self[name] for name in self.spans}, **work}, self.unit_reads)

    def on(self, device: torch.device) -> Stream:
        """Upload the buffer once and cut it."""
        return self.cut(torch.from_numpy(self.data).to(device, non_blocking=True))

    def cut(self, data: torch.Tensor) -> Stream:
        """The Stream whose arrays lie in `data` as they do here."""
        view = {name: data[lo:hi] for name, (lo, hi) in self.spans.items()}
        every = Queries(view.pop("every_rows"), view.pop("every_bounds"))
        read = Queries(view.pop("read_rows"), view.pop("read_bounds"))
        work = {name: view.pop(name) for name in self.spans if name not in FIELDS}
        return Stream(every=every, read=read, work=work, **view)

    def results(self, logits: torch.Tensor, logsumexp: torch.Tensor, n_units: int | None = None) -> list[Reads]:
        """Cut the results, logits [C] and logsumexp [R], into one Reads for each unit, or for the first n_units."""
        whole = Reads(logits.float().cpu().numpy(), logsumexp.float().cpu().numpy(), self["offsets"])
        ends = self.unit_reads if n_units is None else self.unit_reads[: n_units + 1]
        return [whole.part(*each) for each in itertools.pairwise(ends.tolist())]


def pack(units: Units, multiple: int = 1) -> Round:
    """Lay the units end to end, and fill up to a multiple of `multiple` rows. Vectorised: the cost grows with the
    number of fields, and hardly with that of units or segments."""
    units = filled(units, multiple)
    n_rows, n_segments, n_reads, _, n_pages, n_forks, n_slots, n_leaves, n_context, continues, states = units.counts.T
    row0, segment0 = _before(n_rows), _before(n_segments)

    lengths = units.lengths
    starts = _before(lengths)
    parents = np.where(units.parents < 0, -1, units.parents + np.repeat(segment0, n_segments))
    origins = np.repeat(n_context, n_segments) + _above(lengths, parents)
    every_rows = np.arange(units.n_tokens, dtype=np.int32)
    places = every_rows + np.repeat(origins - starts, lengths)

    has_context = n_context > 0
    context_of = np.where(has_context, np.cumsum(has_context) - 1, -1)
    anchors = origins.copy()
    going_on = np.flatnonzero(continues)
    anchors[segment0[going_on]] = units.forks[np.cumsum(n_forks)[going_on] - 1]

    read_of = starts[units.read_segments + np.repeat(segment0, n_reads)] + units.read_rows
    normalize = units.normalize.astype(np.int32)
    read_rows = read_of
    read_index = np.arange(len(read_of), dtype=np.int32)
    if (read_of[1:] <= read_of[:-1]).any():  # not each read of a row of its own, in the stream's order
        read_rows, index = np.unique(read_of, return_inverse=True)
        read_index = index.astype(np.int32)
        requested, normalize = normalize, np.zeros(len(read_rows), np.int32)
        np.maximum.at(normalize, read_index, requested)
    bounds = np.append(starts, np.int32(len(every_rows)))
    kept_rows = np.arange(len(units.slots), dtype=np.int32) + np.repeat(row0 - _before(n_slots), n_slots)

    leaves = units.leaves.reshape(-1, 2)
    ends = leaves[:, 0] + np.repeat(row0, n_leaves) + 1
    begun = np.repeat(states, n_segments)
    packed = {
        "tokens": units.tokens,
        "positions": np.where(units.positions < 0, places, units.positions),
        "whole": np.repeat(units.blocks == WHOLE, lengths),
        "starts": starts,
        "lengths": lengths,
        "parents": parents,
        "blocks": units.blocks,
        "contexts": np.repeat(context_of, n_segments),
        "origins": origins,
        "anchors": anchors,
        "context_pages": units.pages[np.repeat(has_context, n_pages)],
        "context_offsets": _offsets(n_pages[has_context]),
        "context_lengths": n_context[has_context],
        "context_forks": units.forks[np.repeat(has_context, n_forks)],
        "context_fork_offsets": _offsets(n_forks[has_context]),
        **_pieces(starts, lengths, parents, begun, ends, leaves[:, 1]),
        "kept_rows": kept_rows,
        "kept_slots": units.slots,
        "every_rows": every_rows,
        "every_bounds": bounds,
        "read_rows": read_rows,
        "read_bounds": np.searchsorted(read_rows, bounds),
        "read_index": read_index,
        "columns": units.columns,
        "offsets": _offsets(units.widths),
        "normalize": normalize,
    }
    return _buffer(packed, _offsets(n_reads))


def _above(lengths: IntArray, parents: IntArray) -> IntArray:
    """How many rows a segment's ancestors have."""
    rows = np.zeros(len(lengths), np.int32)
    at = parents
    while (below := at >= 0).any():
        rows += np.where(below, lengths[at], 0)
        at = np.where(below, parents[at], -1)
    return rows


def _pieces(
    starts: IntArray, lengths: IntArray, parents: IntArray, begun: IntArray, ends: IntArray, slots: IntArray
) -> dict[str, IntArray]:
    """Cut the segments at `ends`, behind the rows whose states are kept in `slots`. begun [S]: the slot of the state
    from which a segment's unit begins."""
    roots = np.flatnonzero(parents < 0)
    if not len(ends):  # every segment is a piece
        piece_from = np.full(len(starts), -1, np.int32)
        piece_from[roots] = begun[roots]
        nowhere = np.full(len(starts), -1, np.int32)
        return _piece_fields(starts, lengths, parents, piece_from, nowhere)
    begins = np.union1d(starts, ends).astype(np.int32)
    n_rows = int(starts[-1] + lengths[-1])
    begins = begins[begins < n_rows]
    first, last = np.searchsorted(begins, starts), np.searchsorted(begins, starts + lengths) - 1
    piece_parents = np.arange(-1, len(begins) - 1, dtype=np.int32)
    piece_parents[first] = np.where(parents < 0, -1, last[parents])
    piece_from, piece_to = np.full((2, len(begins)), -1, np.int32)
    piece_from[first[roots]] = begun[roots]
    piece_to[np.searchsorted(begins, ends) - 1] = slots
    piece_lengths = np.diff(begins, append=n_rows).astype(np.int32)
    return _piece_fields(begins, piece_lengths, piece_parents, piece_from, piece_to)


def _piece_fields(*values: IntArray) -> dict[str, IntArray]:
    return dict(zip(("piece_starts", "piece_lengths", "piece_parents", "piece_from", "piece_to"), values, strict=True))


def _buffer(arrays: dict[str, IntArray], unit_reads: IntArray) -> Round:
    assert tuple(arrays)[: len(FIELDS)] == FIELDS
    spans = {}
    at = 0
    for name, value in arrays.items():
        spans[name] = (at, at + len(value))
        at = aligned(at + len(value))
    data = np.zeros(at, np.int32)
    for name, (lo, hi) in spans.items():
        data[lo:hi] = arrays[name]
    return Round(data, spans, unit_reads)


def _before(sizes: IntArray) -> IntArray:
    """How much lies before each entry: the exclusive prefix sum."""
    out = np.zeros(len(sizes), np.int32)
    np.cumsum(sizes[:-1], out=out[1:])
    return out


def _offsets(sizes: IntArray) -> IntArray:
    """Where each entry begins, and where the last one ends."""
    out = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=out[1:])
    return out
