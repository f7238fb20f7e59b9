"""Decoding at every batch and on every data set, simulated over measured step times; and how it compares."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ramet.bench.core.named_shapes import BLOCK
from ramet.bench.elastic.commit_curves import Curve, Dataset
from ramet.bench.elastic.report import AUTO, NEXT, WHOLE
from ramet.bench.elastic.simulated import Mode, Seconds, SimulatedReplies
from ramet.denoise import elastic
from ramet.denoise.elastic import Auto, ChunkSizes, Fixed, Repeating

SIZES = (2, 4, 6, 8, 12, 16, 24, 32)  # fixed ones
SIMULATED = {"commits": "simulated", "steps": "simulated, of measured times"}
_N_SEQUENCES, _N_STEPS = 256, 360
_RATIOS = ("auto_over_best_fixed", "auto_over_block", "auto_over_next", "auto_over_bound", "auto_over_peer")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds of steps. chunks: measured; next: those of a token a step. fit: what an engine's choice goes by, with
    n_context keys in pages of each reply. floor: the least, by rows, replies, and the part of the rows that is read.
    peer: of whole blocks, by batch."""

    chunks: Seconds
    next: Seconds
    fit: elastic.Seconds
    n_context: int
    floor: Callable[[Floats, int, float], Floats]
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
        tokens, time = self.gained[:, :n].sum(), seconds(together.astype(float), batch).sum()
        size = None if self.sizes is None else float(self.sizes.mean())
        return Throughput(float(tokens / time), float(self.gained.mean()), float(together.mean()), size)


def steps(
    dataset: Dataset, mode: Mode, *, batch: int, n_steps: int, n_groups: int = 1, n_context: int = 0, seed: int = 0,
    curve: Curve | None = None,
) -> SimulatedSteps:  # fmt: skip
    """With `batch` replies in each group at all times, each followed by another; each sees n_context rows in pages. The
    first third is not counted.

    Where sizes are not chosen, replies are independent of one another, and what one group did holds for any batch.
    """
    rng = np.random.default_rng(seed)
    replies = SimulatedReplies(curve or dataset.curve, mode, BLOCK, rng, n_groups, n_context)
    replies.add(lengths(*dataset.reply, n_groups * batch, rng))
    found = np.zeros((2, n_steps, n_groups * batch), np.int64)
    for n in range(n_steps):
        outcome = replies.step()
        found[:, n] = outcome.rows, outcome.gained
        replies.replace(outcome.ended, lengths(*dataset.reply, int(outcome.ended.sum()), rng))
    rows, gained = found[:, n_steps // 3 :]
    sizes = np.array(replies.sizes)[n_steps // 3 :] if replies.sizes else None
    return SimulatedSteps(rows, gained, sizes)


def lengths(mean: float, deviation: float, n: int, rng: np.random.Generator) -> Ints:
    """[n] from 1 on, as log-normal numbers of that mean and standard deviation."""
    spread = np.log1p((deviation / mean) ** 2)
    drawn = rng.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), n)
    return np.maximum(drawn.round(), 1).astype(np.int64)


def cells(
    datasets: Sequence[Dataset], batches: Sequence[int], costs: Costs, *, workers: int, n_steps: int = _N_STEPS
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


def _dataset(dataset: Dataset, *, batches: Sequence[int], costs: Costs, n_steps: int) -> list[dict[str, Any]]:
    """Sizes that are fixed are simulated once for all batches."""
    run = partial(steps, dataset, batch=max(_N_SEQUENCES, *batches), n_steps=n_steps)
    fixed = {str(size): run(Fixed(size)) for size in SIZES}
    whole, following = run(WHOLE), run(NEXT)
    return [_row(dataset, batch, fixed, whole, following, costs, n_steps) for batch in batches]


def _row(
    dataset: Dataset, batch: int, fixed: dict[str, SimulatedSteps], whole: SimulatedSteps, following: SimulatedSteps,
    costs: Costs, n_steps: int,
) -> dict[str, Any]:  # fmt: skip
    run = partial(steps, dataset, costs.sizes(), n_steps=n_steps, n_context=costs.n_context)
    chosen = run(batch=batch, n_groups=max(1, _N_SEQUENCES // batch)).throughput(costs.chunks, batch)
    block = whole.throughput(costs.chunks, batch)
    rates = {name: run.throughput(costs.chunks, batch).tokens_s for name, run in fixed.items()}
    best = max(rates, key=lambda name: rates[name])
    token_s = following.throughput(costs.next, batch).tokens_s
    bound = max(_bound(run, batch, costs) for run in (*fixed.values(), following))
    others = {"best_fixed": rates[best], "block": block.tokens_s, "next": token_s, "bound": bound}
    row: dict[str, Any] = {
        "dataset": dataset.name, "batch": batch, **SIMULATED,
        "tokens_s": {AUTO: chosen.tokens_s, **rates, WHOLE: block.tokens_s, NEXT: token_s},
        "tokens_step": chosen.tokens_step, "rows": chosen.rows, "size": chosen.size, "best_fixed": int(best),
        "bound_tokens_s": bound,
    }  # fmt: skip
    if batch in costs.peer:
        row["peer_tokens_s"] = others["peer"] = block.tokens_step * batch / costs.peer[batch]
    return row | {f"auto_over_{name}": chosen.tokens_s / tokens_s for name, tokens_s in others.items()}


def _bound(run: SimulatedSteps, batch: int, costs: Costs) -> float:
    """Tokens a second, were every step as short as it can be. What gained a token is pending in the step after, and no
    longer read."""
    read = 1 - float(run.gained.sum()) / float(run.rows.sum()) if run.sizes is not None else 1.0
    return run.throughput(lambda rows, n: costs.floor(rows, n, read), batch).tokens_s


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over data sets and batches: the least of each ratio, its geometric mean, and that by batch."""
    found: dict[str, Any] = {"commits": "simulated"}
    for key in _RATIOS:
        by_batch: dict[str, list[float]] = {}
        for row in rows:
            if key in row:
                by_batch.setdefault(str(row["batch"]), []).append(row[key])
        if values := [value for own in by_batch.values() for value in own]:
            means = {n: geometric_mean(own) for n, own in by_batch.items()}
            found[key] = {"least": min(values), "geometric_mean": geometric_mean(values), "by_batch": means}
    return found


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
