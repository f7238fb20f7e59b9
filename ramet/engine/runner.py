"""Batch -> reads: packs a round, starts its pass on the device, cuts the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ramet.cache.store import Store
from ramet.engine.graphs import Graphs
from ramet.engine.scheduler import Batch
from ramet.layers.decoder import Decoder
from ramet.ops.native.pack import pack
from ramet.ops.planning import Plans
from ramet.round import Round
from ramet.tree import Reads

# oneDNN compiles a product for each number of rows that it meets, in about half a millisecond: rounds of nearly equal
# length share one.
ROW_MULTIPLE = 16


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A round under way: logits [C] and logsumexp [R] on the host, complete once `seconds` returns, which waits for it
    and says how long the device took. `recorded`: whether it replays a recorded pass."""

    batch: Batch
    packed: Round
    logits: torch.Tensor
    logsumexp: torch.Tensor
    seconds: Callable[[], float]
    recorded: bool = False

    def wait(self) -> tuple[list[Reads], float]:
        """The reads of each unit, and the seconds that the device took."""
        seconds = self.seconds()
        return self.packed.results(self.logits, self.logsumexp)[: len(self.batch.units)], seconds


class Runner:
    """A model and its pages on a device. `depth`: how many rounds may be under way, the next one packed and sent while
    one runs; 1 where a pass is complete when `launch` returns."""

    def __init__(self, model: Decoder, store: Store, graphs: Graphs | None = None) -> None:
        self.model, self.store, self.graphs = model, store, graphs
        self._plans = Plans(model.planners()) if graphs is None else graphs.plans
        self.depth = 2 if model.device.type == "cuda" else 1

    def run(self, batch: Batch) -> list[Reads]:
        """One pass over a batch's units."""
        return self.launch(batch).wait()[0]

    def launch(self, batch: Batch) -> Flight:
        """Start a pass over a batch's units."""
        if self.depth == 1:
            return self._here(batch)
        packed = pack(batch.units)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        self._copy_pages(batch)
        recorded = self.graphs.launch(packed) if self.graphs is not None else None
        logits, logsumexp = self.model.read(*recorded) if recorded is not None else self._pass(packed)
        logits, logsumexp = _sent(logits), _sent(logsumexp)
        ended.record()
        return Flight(batch, packed, logits, logsumexp, partial(_between, began, ended), recorded is not None)

    def _here(self, batch: Batch) -> Flight:
        began = time.perf_counter()
        self._copy_pages(batch)
        packed = pack(batch.units, ROW_MULTIPLE)
        logits, logsumexp = self._pass(packed)
        seconds = time.perf_counter() - began
        return Flight(batch, packed, logits, logsumexp, lambda: seconds)

    def _copy_pages(self, batch: Batch) -> None:
        for source, target in batch.copies:
            self.store.copy_page(source, target)

    def _pass(self, packed: Round) -> tuple[torch.Tensor, torch.Tensor]:
        """A pass that is not recorded, over arrays of their own length."""
        inside, outside = self._plans(packed)
        work = inside | outside
        stream = (packed.with_work(work) if work else packed).on(self.model.device)
        return self.model(stream, self.store)


def _between(began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
    ended.synchronize()
    milliseconds: float = began.elapsed_time(ended)
    return milliseconds / 1e3


def _sent(values: torch.Tensor) -> torch.Tensor:
    """On their way to the host."""
    there = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return there.copy_(values, non_blocking=True)
