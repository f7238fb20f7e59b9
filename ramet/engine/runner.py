"""Runner: packs the round of a batch, starts its pass on the device, and cuts the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ramet.cache.store import Store
from ramet.engine.batch import Batch
from ramet.engine.decoding import DrawnRows
from ramet.engine.finite import NotFinite, check, probe
from ramet.engine.graphs import Graphs
from ramet.engine.host import Host
from ramet.layers.conditioning import Soft
from ramet.layers.decoder import Decoder
from ramet.ops.head.reference import Drawn, Sampled
from ramet.round import Round, Stream
from ramet.tree import Reads, Step, Stepped
from ramet.units import Unit, Units

# oneDNN compiles a product for each number of rows that it meets, in about half a millisecond: rounds of nearly equal
# length share one.
ROW_MULTIPLE = 16


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """What a round returned: the reads of each unit of the batch, what was drawn for its running replies, and the
    seconds that the device took."""

    reads: list[Reads]
    drawn: DrawnRows | None
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """A round under way: logits [C] and logsumexp [R] on the host, complete once `seconds` returns, which waits for it
    and says how long the device took; what each unit's steps drew, and its running replies. `recorded`: whether it
    replays a recorded pass."""

    batch: Batch
    packed: Round
    logits: torch.Tensor
    logsumexp: torch.Tensor
    drawn: list[list[Drawn]]
    sampled: Sampled | None
    seconds: Callable[[], float]
    recorded: bool = False

    def wait(self) -> RoundResult:
        """Wait until it is complete. Raises NotFinite where results are NaN or infinite."""
        seconds, n_units = self.seconds(), len(self.batch.units)
        results = self.packed.results(self.logits, self.logsumexp, n_units) if n_units else []
        reads = [replace(each, stepped=tuple(map(_stepped, d))) for each, d in zip(results, self.drawn, strict=True)]
        check(self.packed, reads, self.logsumexp, self.sampled)
        return RoundResult(reads, None if self.sampled is None else _on_host(self.sampled), seconds)


class Runner:
    """A model and its pages on a device. `depth`: how many rounds may be under way, the next one packed and sent while
    one runs; 1 where a pass is complete when `launch` returns."""

    def __init__(self, model: Decoder, store: Store, host: Host, graphs: Graphs | None = None) -> None:
        self.model, self.store, self.host, self.graphs = model, store, host, graphs
        self._lists = host.lists(model.planners())
        self.depth = 2 if model.device.type == "cuda" else 1

    def run(self, batch: Batch) -> list[Reads]:
        """One pass over a batch's units."""
        return self.launch(batch).wait().reads

    def is_sound(self) -> bool:
        """Whether the model's logits are finite in a round of our own."""
        shape = self.model.shape
        try:
            self.run(probe(shape.vocab_size, has_canvases=shape.conditioning is not None))
        except NotFinite:
            return False
        return True

    def launch(self, batch: Batch) -> InFlight:
        """Start a pass over a batch's units. Where that fails nothing is under way any more: rounds to come write to
        the buffers that what was sent is read from."""
        if self.depth == 1:
            return self._here(batch)
        try:
            return self._there(batch)
        except Exception:
            torch.cuda.synchronize(self.model.device)
            raise

    def _there(self, batch: Batch) -> InFlight:
        packed = self.host.pack(_units(batch))
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        self._copy_pages(batch)
        soft = _soft(batch.units)
        recorded = self.graphs.launch(packed) if self.graphs is not None and soft is None else None
        hidden, stream = recorded or self._pass(packed, soft)
        logits, logsumexp = map(_sent, self._read(batch, hidden, stream))
        drawn, sampled = self._draw(batch.units, packed, hidden), self._sample(batch, packed, hidden)
        ended.record()
        seconds = partial(_between, began, ended)
        return InFlight(batch, packed, logits, logsumexp, drawn, sampled, seconds, recorded is not None)

    def _here(self, batch: Batch) -> InFlight:
        began = time.perf_counter()
        self._copy_pages(batch)
        packed = self.host.pack(_units(batch), ROW_MULTIPLE)
        hidden, stream = self._pass(packed, _soft(batch.units))
        logits, logsumexp = self._read(batch, hidden, stream)
        drawn, sampled = self._draw(batch.units, packed, hidden), self._sample(batch, packed, hidden)
        seconds = time.perf_counter() - began
        return InFlight(batch, packed, logits, logsumexp, drawn, sampled, lambda: seconds)

    def _copy_pages(self, batch: Batch) -> None:
        for source, target in batch.copies:
            self.store.copy_page(source, target)

    def _pass(self, packed: Round, soft: Soft | None) -> tuple[torch.Tensor, Stream]:
        """A pass that is not recorded, over arrays of their own length."""
        work = self._lists(packed)
        stream = (packed.with_work(work) if work else packed).on(self.model.device)
        return self.model.hidden(stream, self.store, soft=soft), stream

    def _read(self, batch: Batch, hidden: torch.Tensor, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits that units read; steps of replies read none."""
        if batch.has_reads:
            return self.model.read(hidden, stream)
        return torch.empty(0), torch.empty(0)

    def _draw(self, units: Sequence[Unit], packed: Round, hidden: torch.Tensor) -> list[list[Drawn]]:
        """The steps of each unit, from the hidden states of the rows that are read."""
        drawn: list[list[Drawn]] = [[] for _ in units]
        for i, first, step in _steps(units):
            at = np.searchsorted(packed["read_rows"], first + step.rows)
            drawn[i].append(self.model.draw(hidden[torch.from_numpy(at).to(hidden.device)], step))
        return drawn

    def _sample(self, batch: Batch, packed: Round, hidden: torch.Tensor) -> Sampled | None:
        """For the rows that running replies read, which are the last of those that are read."""
        step = batch.step
        if step is None:
            return None
        n, n_all = len(step.chunks.reads), len(packed["read_rows"])
        rows = torch.arange(n_all - n, n_all, dtype=torch.int32, device=hidden.device)
        sampled = self.model.sample(hidden, rows, step.chunks.sampling, step.mask)
        return Sampled(_sent(sampled.tokens), _sent(sampled.logprobs), _sent(sampled.entropy))


def _units(batch: Batch) -> Units:
    """Those of the step come last."""
    if batch.step is None:
        return Units.of(batch.units)
    return Units.joined([Units.of(batch.units), batch.step.units]) if batch.units else batch.step.units


def _on_host(sampled: Sampled) -> DrawnRows:
    return DrawnRows(sampled.tokens.numpy(), np.exp(sampled.logprobs.numpy()), sampled.entropy.numpy())


def _steps(units: Sequence[Unit]) -> Iterator[tuple[int, int, Step]]:
    """Each step, the unit that it is of, and the row of the stream at which its segment begins."""
    row = 0
    for i, unit in enumerate(units):
        for segment, step in unit.tree.steps:
            yield i, row + int(unit.tree.starts[segment]), step
        row += unit.tree.n_tokens


def _soft(units: Sequence[Unit]) -> Soft | None:
    """What earlier steps left of these units' canvases."""
    rows, values = [], []
    for _, first, step in _steps(units):
        if step.soft is not None:
            assert isinstance(step.soft, torch.Tensor)
            free = ~np.isin(step.rows, step.pinned)
            rows.append(torch.from_numpy(first + step.rows[free]))
            values.append(step.soft[torch.from_numpy(free).to(step.soft.device)])
    return Soft(torch.cat(rows).to(values[0].device), torch.cat(values)) if rows else None


def _stepped(drawn: Drawn) -> Stepped:
    tokens, best, logprobs, entropy = (
        each.cpu().numpy() for each in (drawn.tokens, drawn.best, drawn.logprobs, drawn.entropy)
    )
    return Stepped(tokens.astype(np.int32), best.astype(np.int32), logprobs, entropy, drawn.soft)


def _between(began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
    ended.synchronize()
    milliseconds: float = began.elapsed_time(ended)
    return milliseconds / 1e3


def _sent(values: torch.Tensor) -> torch.Tensor:
    """Start the copies to the host."""
    there = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return there.copy_(values, non_blocking=True)
