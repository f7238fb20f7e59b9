"""Decoding at every batch and on every data set, simulated over measured step times; and how it compares."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ramet.bench.commit_curves import Dataset
from ramet.bench.samples import JsonObject
from ramet.bench.simulated import Seconds
from ramet.bench.simulated_loads import BLOCK, Steps, Throughput, steps
from ramet.denoise import elastic
from ramet.denoise.elastic import Auto, ChunkSizes, Fixed, Repeating

SIZES = (2, 4, 6, 8, 12, 16, 24, 32)  # fixed ones
AUTO, WHOLE, NEXT = "auto", "block", "next"
_N_SEQUENCES, _N_STEPS = 256, 360
Floats = npt.NDArray[np.float64]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds of steps. chunks: measured; next: those of a token a step. told: what an engine's choice goes by, with
    n_context keys in pages of each reply. floor: the least, by rows, replies, and the part of the rows that is read.
    peer: of whole blocks, by batch."""

    chunks: Seconds
    next: Seconds
    told: elastic.Seconds
    n_context: int
    floor: Callable[[Floats, int, float], Floats]
    peer: dict[int, float]


def chosen_sizes(costs: Costs) -> ChunkSizes:
    """As an engine chooses them."""
    return Repeating(Auto(costs.told, BLOCK), 2 * BLOCK)


def cells(
    datasets: Sequence[Dataset], batches: Sequence[int], costs: Costs, *, workers: int, n_steps: int = _N_STEPS
) -> Iterator[JsonObject]:
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


def _dataset(dataset: Dataset, *, batches: Sequence[int], costs: Costs, n_steps: int) -> list[JsonObject]:
    """Sizes that are fixed are simulated once for all batches."""
    run = partial(steps, dataset, batch=max(_N_SEQUENCES, *batches), n_steps=n_steps)
    fixed = {str(size): run(Fixed(size)) for size in SIZES}
    whole, following = run("block"), run("next")
    return [_row(dataset, batch, fixed, whole, following, costs, n_steps) for batch in batches]


def _row(
    dataset: Dataset, batch: int, fixed: dict[str, Steps], whole: Steps, following: Steps, costs: Costs, n_steps: int
) -> JsonObject:
    run = partial(steps, dataset, chosen_sizes(costs), n_steps=n_steps, n_context=costs.n_context)
    chosen = run(batch=batch, n_groups=max(1, _N_SEQUENCES // batch)).throughput(costs.chunks, batch)
    each = {name: run.throughput(costs.chunks, batch) for name, run in fixed.items()}
    best = max(each, key=lambda name: each[name].tokens_s)
    block, token = whole.throughput(costs.chunks, batch), following.throughput(costs.next, batch)
    bound = max(_bound(run, batch, costs) for run in (*fixed.values(), following))
    row: JsonObject = {
        "dataset": dataset.name, "batch": batch, "commits": "simulated", "steps": "simulated, of measured times",
        "tokens_s": {AUTO: chosen.tokens_s, **_rates(each), WHOLE: block.tokens_s, NEXT: token.tokens_s},
        "tokens_step": chosen.tokens_step, "rows": chosen.rows, "size": chosen.size, "best_fixed": int(best),
        "bound_tokens_s": bound, "auto_over_best_fixed": chosen.tokens_s / each[best].tokens_s,
        "auto_over_block": chosen.tokens_s / block.tokens_s, "auto_over_next": chosen.tokens_s / token.tokens_s,
        "auto_over_bound": chosen.tokens_s / bound,
    }  # fmt: skip
    if batch in costs.peer:
        theirs = block.tokens_step * batch / costs.peer[batch]
        row |= {"peer_tokens_s": theirs, "auto_over_peer": chosen.tokens_s / theirs}
    return row


def _rates(each: dict[str, Throughput]) -> dict[str, float]:
    return {name: found.tokens_s for name, found in each.items()}


def _bound(run: Steps, batch: int, costs: Costs) -> float:
    """Tokens a second, were every step as short as it can be. What gained a token is pending in the step after, and no
    longer read."""
    read = 1 - float(run.gained.sum()) / float(run.rows.sum()) if run.sizes is not None else 1.0
    return run.throughput(lambda rows, n: costs.floor(rows, n, read), batch).tokens_s


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


_RATIOS = ("auto_over_best_fixed", "auto_over_block", "auto_over_next", "auto_over_bound", "auto_over_peer")


def summary(rows: Sequence[JsonObject]) -> JsonObject:
    """Over data sets and batches: the least of each ratio, its geometric mean, and that by batch."""
    found: JsonObject = {"commits": "simulated"}
    batches = dict.fromkeys(row["batch"] for row in rows)
    for key in _RATIOS:
        if values := _column(rows, key):
            by_batch = {str(n): _column([row for row in rows if row["batch"] == n], key) for n in batches}
            found[key] = {
                "least": min(values), "geometric_mean": geometric_mean(values),
                "by_batch": {n: geometric_mean(own) for n, own in by_batch.items() if own},
            }  # fmt: skip
    return found


def _column(rows: Sequence[JsonObject], key: str) -> list[float]:
    return [cast(float, row[key]) for row in rows if key in row]
