"""Decoding at every batch and on every data set, simulated over measured step times; and how it compares."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ramet.bench.core.named_shapes import BLOCK
from ramet.bench.elastic.commit_curves import Curve, Dataset
from ramet.bench.elastic.report import AUTO, NEXT, WHOLE, Rows
from ramet.bench.elastic.simulated import Floats, Ints, Mode, Seconds, SimulatedReplies
from ramet.denoise import elastic
from ramet.denoise.elastic import Auto, ChunkSizes, Fixed, Repeating

SIZES = (2, 4, 6, 8, 12, 16, 24, 32)  # fixed ones
SIMULATED = {"commits": "simulated", "steps": "simulated, of measured times"}
_N_SEQUENCES = 256
_RATIOS = ("auto_over_best_fixed", "auto_over_block", "auto_over_next", "auto_over_bound", "auto_over_peer")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds of steps. chunks: measured; next: those of a token a step. fit: what an engine's choice goes by, with
    n_context keys in pages of each reply. floor: the least, by rows, rows that are read, and keys. peer: of whole
    blocks, by batch."""

    chunks: Seconds
    next: Seconds
    fit: elastic.Seconds
    n_context: int
    floor: Callable[[Floats, Floats, int], Floats]
    peer: dict[int, float]

    def sizes(self) -> ChunkSizes:
        """As an engine chooses them."""
        return Repeating(Auto(self.fit, BLOCK), 2 * BLOCK)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of decoding alone: tokens a second, tokens that a reply gains in a step, rows of a step, and the mean size of
    chunks (None: of whole blocks, or a token a step)."""

    tokens_s: float
    tokens_step: float
    rows: float
    size: float | None


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSteps:
    """Of S steps of N replies: rows that each ran and tokens that it gained [S, N], and the sizes of chunks that were
    chosen [S, G] (None: of whole blocks, or a token a step)."""

    rows: Ints
    gained: Ints
    sizes: Ints | None

    def throughput(self, seconds: Seconds, batch: int) -> Throughput:
        """Were they run by so many replies at once: the N are as many groups as that makes, and some left over."""
        n = self.rows.shape[1] // batch * batch
        assert n
        together = self.rows[:, :n].reshape(len(self.rows), -1, batch).sum(2)
        tokens_s = float(self.gained[:, :n].sum() / seconds(together.astype(float), batch).sum())
        size = None if self.sizes is None else float(self.sizes.mean())
        return Throughput(tokens_s, float(self.gained.mean()), float(together.mean()), size)

    def bound(self, batch: int, costs: Costs) -> float:
        """Tokens a second, were every step as short as it can be. What gained a token is pending in the step after, and
        no longer read."""
        read = 1.0 if self.sizes is None else 1 - float(self.gained.sum()) / float(self.rows.sum())
        return self.throughput(lambda rows, n: costs.floor(rows, rows * read, costs.n_context * n), batch).tokens_s


def steps(
    dataset: Dataset,
    mode: Mode,
    *,
    batch: int,
    n_steps: int,
    n_groups: int = 1,
    n_context: int = 0,
    seed: int = 0,
    curve: Curve | None = None,
) -> SimulatedSteps:
    """With `batch` replies in each group at all times, each followed by another; each sees n_context rows in pages. The
    first third is not counted.

    Where sizes are not chosen, replies are independent of one another, and what one group did holds for any batch.
    """
    rng = np.random.default_rng(seed)
    replies = SimulatedReplies(curve or dataset.curve, mode, BLOCK, rng, n_groups, n_context)
    replies.add(lengths(*dataset.reply, n_groups * batch, rng))
    outcomes = []
    for _ in range(n_steps):
        outcomes.append(replies.step())
        ended = outcomes[-1].ended
        replies.replace(ended, lengths(*dataset.reply, int(ended.sum()), rng))
    counted = outcomes[n_steps // 3 :]
    rows = np.array([outcome.rows for outcome in counted], np.int64)
    gained = np.array([outcome.gained for outcome in counted], np.int64)
    return SimulatedSteps(rows, gained, np.array(replies.sizes)[n_steps // 3 :] if replies.sizes else None)


def lengths(mean: float, deviation: float, n: int, rng: np.random.Generator) -> Ints:
    """[n] from 1 on, as log-normal numbers of that mean and standard deviation."""
    spread = np.log1p((deviation / mean) ** 2)
    drawn = rng.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), n)
    return np.maximum(drawn.round(), 1).astype(np.int64)


def cells(
    datasets: Sequence[Dataset], batches: Sequence[int], costs: Costs, *, workers: int, n_steps: int
) -> Iterator[dict[str, Any]]:
    """A row for each data set and batch: all of `simulated commits` and simulated steps."""
    work = partial(_dataset, batches=batches, costs=costs, n_steps=n_steps)
    for rows in in_processes(work, datasets, workers):
        yield from rows


def in_processes(work: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """Results in the order of the items; with one worker in this process."""
    if workers == 1:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("spawn")  # a device does not survive a fork
    with ProcessPoolExecutor(min(workers, len(items)), context) as pool:
        yield from pool.map(work, items)


def _dataset(dataset: Dataset, *, batches: Sequence[int], costs: Costs, n_steps: int) -> Rows:
    """Simulates each mode but auto once for all batches."""
    modes: dict[str, Mode] = {**{str(size): Fixed(size) for size in SIZES}, WHOLE: WHOLE, NEXT: NEXT}
    n = max(_N_SEQUENCES, *batches)
    runs = {name: steps(dataset, mode, batch=n, n_steps=n_steps) for name, mode in modes.items()}
    return [_row(dataset, batch, runs, costs, n_steps) for batch in batches]


def _row(
    dataset: Dataset, batch: int, runs: Mapping[str, SimulatedSteps], costs: Costs, n_steps: int
) -> dict[str, Any]:
    own = partial(steps, dataset, costs.sizes(), n_steps=n_steps, n_context=costs.n_context)
    auto = own(batch=batch, n_groups=max(1, _N_SEQUENCES // batch)).throughput(costs.chunks, batch)
    others = {name: run.throughput(costs.next if name == NEXT else costs.chunks, batch) for name, run in runs.items()}
    rates = {AUTO: auto.tokens_s} | {name: each.tokens_s for name, each in others.items()}
    best = max(SIZES, key=lambda size: rates[str(size)])
    bound = max(run.bound(batch, costs) for name, run in runs.items() if name != WHOLE)
    rivals = {"best_fixed": rates[str(best)], "block": rates[WHOLE], "next": rates[NEXT], "bound": bound}
    row = {"dataset": dataset.name, "batch": batch, **SIMULATED, "tokens_s": rates, "best_fixed": best}
    row |= {"tokens_step": auto.tokens_step, "rows": auto.rows, "size": auto.size, "bound_tokens_s": bound}
    if batch in costs.peer:
        row["peer_tokens_s"] = rivals["peer"] = others[WHOLE].tokens_step * batch / costs.peer[batch]
    return row | {f"auto_over_{name}": auto.tokens_s / tokens_s for name, tokens_s in rivals.items()}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over data sets and batches: the least of each ratio, its geometric mean, and that by batch."""
    found: dict[str, Any] = {"commits": "simulated"}
    for key in _RATIOS:
        if values := [(row["batch"], row[key]) for row in rows if key in row]:
            batches = sorted({batch for batch, _ in values})
            by_batch = {str(n): statistics.geometric_mean([x for batch, x in values if batch == n]) for n in batches}
            every = [x for _, x in values]
            found[key] = {"least": min(every), "geometric_mean": statistics.geometric_mean(every), "by_batch": by_batch}
    return found
