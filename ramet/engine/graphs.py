"""Recorded passes on CUDA: one graph for each capacity of a ladder; a round replays the smallest that holds it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from ramet.cache.store import Store
from ramet.engine.host import Host
from ramet.engine.staging import Layout, outside
from ramet.layers.decoder import Decoder
from ramet.round import Capacity, Round, Stream
from ramet.tree import IntArray, Read, Sampling, Segment, Tree
from ramet.units import Unit, Units

_LEAST_ROWS, _MOST_ROWS, _STEPS = 32, 256, 16  # rungs lie 32 to 256 rows apart, a 16th to a 32nd of themselves
_LEAST_READS, _ROWS_A_READ = 64, 8  # reads that decisions come with; passes that read more are recorded when they come
_ROWS_A_FORK = 32
_LOOSE = 1 << 20  # int32 places for the pages of contexts and the head's columns
_BUFFERS = 2  # on the host, as many as rounds are under way: one that has landed has read its own
_COPIED = 4096  # int32 places: how finely the length of a copy goes


def ladder(max_rows: int) -> list[int]:
    """The capacities in rows, ascending, the last at least max_rows: padding is at most a 16th of a round of 512 rows
    or more, and at most 255 rows."""
    rungs, rows = [], 0
    while rows < max_rows:
        step = 1 << max(0, rows.bit_length() - 1) >> (_STEPS.bit_length() - 1)
        rows += min(max(step, _LEAST_ROWS), _MOST_ROWS)
        rungs.append(rows)
    return rungs


def capacities(rows: int) -> Iterator[Capacity]:
    """Of one rung: for the reads that decisions come with, and for as many as rows."""
    forks = max(_ROWS_A_FORK, rows // _ROWS_A_FORK)
    usual = min(rows, max(_LEAST_READS, rows // _ROWS_A_READ))
    for reads in sorted({usual, rows}):
        yield Capacity(rows, reads, forks)


class _Host:
    """Pinned memory of `size` int32 places, from which a round goes to the device's buffer."""

    def __init__(self, size: int, data: torch.Tensor) -> None:
        size = -(-size // _COPIED) * _COPIED
        self._memory, self._data = torch.zeros(size, dtype=torch.int32, pin_memory=True), data
        self.array: IntArray = self._memory.numpy()[: len(data)]
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # views, by their length

    def send(self, used: int) -> None:
        """At least the first places."""
        size = min(-(-used // _COPIED) * _COPIED, len(self._data))
        if size not in self._parts:
            self._parts[size] = self._data[:size], self._memory[:size]
        there, here = self._parts[size]
        there.copy_(here, non_blocking=True)


class Graphs:
    """The recorded passes of a model over its store, for rounds of up to max_rows rows. A round is launched while one
    other is under way at most: see Runner.depth."""

    def __init__(self, model: Decoder, store: Store, host: Host, max_rows: int) -> None:
        planners = model.planners()
        self._model, self._store, self._host = model, store, host
        self._inside = [p for p in planners if p.inside]
        self._rungs = ladder(max_rows)
        self._layouts = {c: self._layout(c) for rows in self._rungs for c in capacities(rows)}
        size = max(layout.size for layout in self._layouts.values()) + _LOOSE
        self._data = torch.zeros(size, dtype=torch.int32, device=model.device)
        self._rows = torch.arange(max(c.rows for c in self._layouts), dtype=torch.int32, device=model.device)
        self._hosts = [_Host(size, self._data) for _ in range(_BUFFERS)]
        self._turn = 0
        layouts = [self._layouts[capacity] for capacity in sorted(self._layouts)]
        self._staging = host.staging(planners, layouts)
        self._side = torch.cuda.Stream(model.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded: dict[Capacity, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def warm(self, capacity: Capacity) -> None:
        """Run a pass of padding alone, unrecorded, through a layer of each kind: what compiles and allocates at a first
        use does so now. It keeps nothing: other passes' pages may be in use."""
        stream = self._layouts[capacity].stream(self._data, self._rows)
        self._data.zero_()
        stream.kept_slots.fill_(-1)
        self._model.hidden(stream, self._store, self._model.shape.kinds())

    def _warm_head(self) -> None:
        packed = self._host.pack(Units.of([Unit(Tree.of([Segment([0], reads=[Read([0, 1])])]))]))
        staged = self._staging(packed, self._hosts[0].array)
        assert staged is not None
        self._hosts[0].send(staged.used)
        hidden = torch.zeros(1, self._model.shape.hidden_size, dtype=self._model.dtype, device=self._model.device)
        self._model.read(hidden, outside(self._data, staged.spans))

    def _warm_draws(self) -> None:
        """Few rows and many: the likeliest ids, and drawn from all, from a part, and some so and some so."""
        hidden = torch.zeros(1, self._model.shape.hidden_size, dtype=self._model.dtype, device=self._model.device)
        for n, rest, n_cut in itertools.product((2, 65, 256, 4097), (0.0, 1.0), (0, 200)):
            temperatures, uniforms, top_p = (np.full(n, x, np.float32) for x in (rest, 0.5, 1.0))
            top_k = (np.arange(n) < min(n_cut, n - 1)).astype(np.int32)
            temperatures[top_k > 0] = 1.0
            sampling = Sampling(temperatures, uniforms, top_p, top_k)
            self._model.sample(hidden, torch.zeros(n, dtype=torch.int32, device=hidden.device), sampling)

    def record(self, *, every: bool = False) -> None:
        """Record the passes that decisions need, or every one, the largest first, so that the others find room in its
        memory."""
        from ramet.ops.kernels.triton import compile_ahead  # where there is a GPU alone

        order = sorted(self._layouts if every else {min(capacities(rows)) for rows in self._rungs}, reverse=True)
        passes = [partial(self.warm, capacity) for capacity in order]
        compile_ahead([*passes, self._warm_head, self._warm_draws], self._model.device)
        for run in (passes[0], passes[-1], self._warm_head, self._warm_draws):
            run()
        torch.cuda.synchronize(self._model.device)
        for capacity in tqdm(order, desc="Recording passes", unit="graph", disable=None):
            self._record(capacity)

    @torch.inference_mode()
    def launch(self, packed: Round) -> tuple[torch.Tensor, Stream] | None:
        """Upload a round and start its pass. Returns the final hidden states [N, C], of which the first are those of
        the rows that are read, and the stream that the head reads; both last until the next launch's head is done.
        None for a round that no recorded pass holds."""
        host, self._turn = self._hosts[self._turn], (self._turn + 1) % _BUFFERS
        staged = self._staging(packed, host.array)
        if staged is None:
            return None
        capacity = staged.layout.capacity
        if capacity not in self._recorded:
            self.warm(capacity)
            self._record(capacity)
        graph, hidden = self._recorded[capacity]
        host.send(staged.used)
        graph.replay()
        return hidden, outside(self._data, staged.spans)

    def recording(self, hidden: torch.Tensor) -> tuple[Capacity, torch.cuda.CUDAGraph]:
        """The recorded pass whose final hidden states these are, to be replayed, and its capacity."""
        return next((capacity, graph) for capacity, (graph, out) in self._recorded.items() if out is hidden)

    def _layout(self, capacity: Capacity) -> Layout:
        rooms = {name: n for p in self._inside for name, n in p.room(capacity).items()}
        return Layout(capacity, rooms, [name for p in self._inside for name in p.by_row])

    @torch.inference_mode()
    def _record(self, capacity: Capacity) -> None:
        graph = torch.cuda.CUDAGraph()
        stream = self._layouts[capacity].stream(self._data, self._rows)
        torch.cuda.synchronize(self._model.device)
        with torch.cuda.stream(self._side):  # one for all: a pool lends what one stream has freed to it alone
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                hidden = self._model.hidden(stream, self._store)
            finally:
                graph.capture_end()
        self._recorded[capacity] = graph, hidden
