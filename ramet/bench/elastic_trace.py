"""Requests that arrive at random: how many a second are served within a limit, simulated; and a trace that an engine
runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from ramet.bench.commit_curves import Dataset
from ramet.bench.curve_judge import Clock, Judge
from ramet.bench.elastic_sides import Mode as SideMode
from ramet.bench.elastic_sides import Side
from ramet.bench.elastic_simulated import AUTO, NEXT, WHOLE, Costs, Floats, Told, in_processes
from ramet.bench.samples import JsonObject
from ramet.bench.simulated import Mode
from ramet.bench.simulated_loads import BLOCK, Ints, Trace, capacity, lengths, served
from ramet.denoise.elastic import Auto, Demand, Fixed

LIMIT_S = 0.05  # of nine of ten requests, from one token to the next
MODES = (AUTO, "2", "4", "8", "16", "32", WHOLE, NEXT)
_LOWEST, _HIGHEST, _LEAST = 0.5, 500.0, 100  # requests a second that are tried, and requests at least
_PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 1.6)  # of its capacity, at which a mode is shown


class Informed:
    """Auto by what steps of as many replies take as there are in a round."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._told: Told = costs.told(1)
        self._auto = Auto(self._seconds, BLOCK)

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        self._told = self._costs.told(sum(len(demand.uncached) for demand in demands))
        return self._auto.choose(demands, n_other)

    def _seconds(self, rows: Floats) -> Floats:
        return self._told(rows)


def simulated(dataset: Dataset, name: str, costs: Costs, *, rate: float, n_requests: int, seed: int = 0) -> Trace:
    """A trace in the mode of that name."""
    mode: Mode
    if name == AUTO:
        mode = Informed(costs)
    elif name in (WHOLE, NEXT):
        mode = "block" if name == WHOLE else "next"
    else:
        mode = Fixed(int(name))
    seconds = costs.next if name == NEXT else costs.chunks
    return served(dataset, mode, seconds, rate=rate, n_requests=n_requests, seed=seed)


def capacities(
    dataset: Dataset, costs: Costs, *, seconds: float, workers: int, modes: Sequence[str] = MODES
) -> list[JsonObject]:
    """By mode the requests a second at which nine of ten take LIMIT_S a token at most, and what they take at others; of
    traces that requests come in for so many seconds."""
    work = partial(_capacity, dataset=dataset, costs=costs, seconds=seconds)
    return list(in_processes(work, modes, workers))


def _capacity(name: str, *, dataset: Dataset, costs: Costs, seconds: float) -> JsonObject:
    def at(rate: float) -> Trace:
        return simulated(dataset, name, costs, rate=rate, n_requests=max(_LEAST, int(rate * seconds)))

    found = capacity(at, LIMIT_S, low=_LOWEST, high=_HIGHEST)
    rates = [part * (found or 1.0) for part in _PARTS]
    return {
        "dataset": dataset.name, "mode": name, "commits": "simulated", "steps": "simulated, of measured times",
        "limit_ms": LIMIT_S * 1e3, "requests_s": found, "rates": rates,
        "p90_ms": [at(rate).per_token() * 1e3 for rate in rates],
    }  # fmt: skip


def over_time(trace: Trace) -> JsonObject:
    """Of each step: when it ended, replies, and the size of their chunks (empty: not chosen)."""
    return {
        "ended_s": trace.ended.round(4).tolist(), "replies": trace.batches.tolist(), "sizes": trace.sizes.tolist(),
    }  # fmt: skip


def measured(
    side: Side, mode: SideMode, dataset: Dataset, judge: Judge, *, rate: float, n_requests: int, seed: int = 0
) -> tuple[Trace, float]:
    """What the engine does with requests of random ids that come at random; and how many seconds it took."""
    rng = np.random.default_rng(seed)
    came = np.cumsum(rng.exponential(1 / rate, n_requests))
    room = side.engine.writer.max_length // 2
    prompts, n_tokens = (np.minimum(lengths(*of, n_requests, rng), room) for of in (dataset.prompt, dataset.reply))
    clock = Clock(judge, 0, 1 << 60, float("inf"), lambda: None)
    with side.judged(mode, clock):
        began, first, last = asyncio.run(_asked(side, mode, came, prompts, n_tokens))
    at = np.array([each.at for each in clock.seen]) - began
    replies = np.array([each.replies for each in clock.seen])
    rows = np.array([each.rows for each in clock.seen])
    return Trace(came, first, last, n_tokens, at, replies, rows // replies), float(last.max())


async def _asked(
    side: Side, mode: SideMode, came: Floats, prompts: Ints, n_tokens: Ints
) -> tuple[float, Floats, Floats]:
    """When it began; and from then on, when each had its first tokens and its last."""
    first, last = np.full((2, len(came)), np.nan)
    began = time.perf_counter()

    async def one(i: int) -> None:
        await asyncio.sleep(max(0.0, began + came[i] - time.perf_counter()))
        request = side.request(1_000_000 + i, mode, int(prompts[i]), int(n_tokens[i]))
        async for piece in side.engine.writer.stream(request):
            last[i] = time.perf_counter() - began
            if piece.positions and np.isnan(first[i]):
                first[i] = last[i]

    await asyncio.gather(*(one(i) for i in range(len(came))))
    return began, first, last
