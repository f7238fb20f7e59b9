"""Requests that arrive at random: how many a second are served within a limit, simulated; and a trace that an engine
runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from ramet.bench.commit_curves import Dataset
from ramet.bench.curve_judge import Clock, Judge
from ramet.bench.elastic_sides import Mode as SideMode
from ramet.bench.elastic_sides import Side
from ramet.bench.elastic_simulated import AUTO, NEXT, WHOLE, Costs, Floats, chosen_sizes, in_processes
from ramet.bench.samples import JsonObject
from ramet.bench.simulated import Mode
from ramet.bench.simulated_loads import DELAY_S, Arrivals, Ints, Trace, capacity, served
from ramet.denoise.elastic import Fixed
from ramet.generation import Piece
from ramet.tree import BoolArray

FIRST = 1_000_000  # the number of the first request that nobody else's ids have
LIMIT_S = 0.05  # of nine of ten requests, from one token to the next
MODES = (AUTO, "2", "4", "8", "16", "32", WHOLE, NEXT)
_LOWEST, _HIGHEST, _LEAST = 0.5, 500.0, 100  # requests a second that are tried first, and requests at least
_PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 1.6)  # of its capacity, at which a mode is shown


def simulated(dataset: Dataset, name: str, costs: Costs, *, rate: float, n_requests: int, **more: Any) -> Trace:
    """A trace in the mode of that name. more: as `served` takes it."""
    mode: Mode
    if name == AUTO:
        mode = chosen_sizes(costs)
    elif name in (WHOLE, NEXT):
        mode = "block" if name == WHOLE else "next"
    else:
        mode = Fixed(int(name))
    seconds = costs.next if name == NEXT else costs.chunks
    return served(dataset, mode, seconds, rate=rate, n_requests=n_requests, n_context=costs.n_context, **more)


def capacities(
    dataset: Dataset, costs: Costs, *, seconds: float, workers: int, n_most: int = 256, modes: Sequence[str] = MODES
) -> list[JsonObject]:
    """By mode the requests a second at which nine of ten take LIMIT_S a token at most, and what they take at others; of
    traces that requests come in for so many seconds. n_most: replies at once."""
    work = partial(_capacity, dataset=dataset, costs=costs, seconds=seconds, n_most=n_most)
    return list(in_processes(work, modes, workers))


def _capacity(name: str, *, dataset: Dataset, costs: Costs, seconds: float, n_most: int) -> JsonObject:
    def at(rate: float) -> Trace:
        n = max(_LEAST, int(rate * seconds))
        return simulated(dataset, name, costs, rate=rate, n_requests=n, max_running=n_most)

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


@dataclass(slots=True)
class _Heard:
    """Of each request [N], told by the engine's thread: whether it has got anything, and of what it got from `since`
    and before `until` on, when its first tokens and its last were there, and how many these are. Nothing is heard of
    others' tasks, which would wait for the interpreter beside the engine."""

    some: BoolArray
    first: Floats
    last: Floats
    n_tokens: Ints
    since: float = np.inf
    until: float = np.inf

    @classmethod
    def of(cls, n: int) -> Self:
        return cls(np.zeros(n, np.bool_), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))

    def begin(self, seconds: float) -> float:
        """Listen for so long from now on; returns when that is."""
        began = time.perf_counter()
        self.until = began + seconds
        self.since = began
        return began

    def hear(self, number: int, piece: Piece) -> None:
        if not piece.positions:
            return
        self.some[number], now = True, time.perf_counter()
        if not self.since <= now < self.until:
            return
        self.last[number] = now
        if not self.n_tokens[number]:
            self.first[number] = now
        self.n_tokens[number] += len(piece.positions)


def measured(
    side: Side, mode: SideMode, dataset: Dataset, judge: Judge | None, *, rate: float, seconds: float, n_begun: int,
    seed: int, number: int,
) -> Trace:  # fmt: skip
    """What the engine does with requests of random ids that come at random for so many seconds, behind n_begun that are
    under way; then all are cancelled. The time that draws are judged for is in it. number: of the first one's ids,
    which others are not to have."""
    asked = Arrivals.at_random(dataset, rate, most_requests(rate, seconds), np.random.default_rng(seed), n_begun)
    room = side.engine.writer.max_length // 2
    requests = [
        side.request(i, mode, None, min(int(n), room))
        if i < n_begun
        else side.request(number + i, mode, min(int(n_prompt), room), min(int(n), room))
        for i, (n_prompt, n) in enumerate(zip(asked.prompts, asked.n_tokens, strict=True)) if asked.came[i] < seconds
    ]  # fmt: skip
    heard, clock = _Heard.of(len(requests)), Clock(judge, 0, 1 << 60, float("inf"), lambda: None, stands=False)
    with side.judged(mode, clock):
        replies = [side.begin(request, partial(heard.hear, i)) for i, request in enumerate(requests[:n_begun])]
        while any(not some and not reply.done() for some, reply in zip(heard.some, replies, strict=False)):
            time.sleep(1e-3)
        began = heard.begin(seconds)
        for i in range(n_begun, len(requests)):
            time.sleep(max(0.0, began + asked.came[i] - time.perf_counter()))
            replies.append(side.begin(requests[i], partial(heard.hear, i)))
        time.sleep(max(0.0, began + seconds - time.perf_counter()))
        side.end(replies)
    seen = [each for each in clock.seen if began <= each.at < began + seconds]
    at, n_live, rows = (np.array([getattr(each, name) for each in seen]) for name in ("at", "replies", "rows"))
    came = asked.came[: len(requests)]
    return Trace(
        came, heard.first - began, heard.last - began, heard.n_tokens, at - began, n_live,
        rows // np.maximum(n_live, 1), seconds,
    )  # fmt: skip


def figures(trace: Trace, dataset: Dataset) -> dict[str, float]:
    """Milliseconds a token of nine of ten requests, and to the first tokens; and the requests a second whose tokens
    were made, of the mean length: where more come, that is what can be served. met: whether that is within LIMIT_S, and
    requests are begun as they come."""
    per_token, delay = trace.per_token(), trace.delay()
    return {
        "p90_ms": per_token * 1e3, "delay_ms": delay * 1e3, "served_s": trace.tokens_s() / dataset.reply[0],
        "met": per_token <= LIMIT_S and delay <= DELAY_S,
    }  # fmt: skip


def most_requests(rate: float, seconds: float) -> int:
    """More than come at random in so many seconds."""
    return int(rate * seconds + 6 * (rate * seconds) ** 0.5) + 1
