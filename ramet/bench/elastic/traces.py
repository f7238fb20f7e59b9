"""Requests that come at random: simulated over the times of steps, and how many a second are served within a limit."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ramet.bench.core.named_shapes import BLOCK
from ramet.bench.core.samples import JsonObject
from ramet.bench.elastic.cells import SIMULATED, Costs, in_processes, lengths
from ramet.bench.elastic.commit_curves import Dataset
from ramet.bench.elastic.report import AUTO, NEXT, WHOLE, Rows
from ramet.bench.elastic.simulated import Floats, Ints, Mode, Seconds, SimulatedReplies
from ramet.denoise.elastic import Fixed

LIMIT_S = 0.05  # of nine of ten requests, from one token to the next
DELAY_S = 1.0  # to a request's first tokens: with more, they come faster than they are served
MODES = (AUTO, "2", "4", "8", "16", "32", WHOLE, NEXT)
_LOWEST, _HIGHEST = 0.5, 2000.0  # requests a second that are tried
_LEAST = 100  # requests of a trace
_PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 1.6)  # of its capacity, at which a mode is shown
_DRAWN = 16  # replies of which one is met under way
_MAX_ROUND_ROWS = 2048  # of prompts


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests that came and went. Of each [N]: when it came, when its first tokens and its last were there (NaN: never
    seen), and how many it got. Of each step [T]: when it ended, how many replies gained, and the size of their chunks
    (empty: none). until: when it was cut off; what came later is not in it."""

    came: Floats
    first: Floats
    last: Floats
    n_tokens: Ints
    ended: Floats
    batches: Ints
    sizes: Ints
    until: float = np.inf

    def per_token(self, quantile: float = 0.9) -> float:
        """Seconds from one token to the next, of the requests with several: the mean of each, their quantile. What was
        cut off counts with a block of tokens at least: of fewer, which come together, the mean says little."""
        several = self.n_tokens > (1 if self.until == np.inf else BLOCK)
        if not several.any():
            return self.until
        each = (self.last - self.first)[several] / (self.n_tokens[several] - 1)
        return float(np.quantile(each, quantile))

    def delay(self) -> float:
        """Seconds to the first tokens, of the last quarter of the requests that came the median (those under way from
        the beginning did not): it grows with the trace where more come than are served. Where it was cut off, of those
        that had the time to wait for twice DELAY_S; who has none yet waits to the end at least, and so do all where
        none came."""
        n_begun = int(np.searchsorted(self.came, 0, side="right"))
        if n_begun == len(self.came):
            return self.until
        end = int(np.searchsorted(self.came, self.until - 2 * DELAY_S, side="right"))
        end = end if end > n_begun else len(self.came)
        last = slice(end - max(1, (end - n_begun) // 4), end)
        first = np.where(np.isnan(self.first), self.until, self.first)
        return float(np.median(first[last] - self.came[last]))

    def tokens_s(self) -> float:
        """Tokens a second, of all requests: to the end, or to where it was cut off."""
        return float(self.n_tokens.sum() / (self.until if np.isfinite(self.until) else np.nanmax(self.last)))

    def figures(self, dataset: Dataset) -> dict[str, float]:
        """Milliseconds a token of nine of ten requests, and to the first tokens; and the requests a second whose tokens
        were made, of the mean length: where more come, that is what can be served. met: whether that is within LIMIT_S,
        and requests are begun as they come."""
        figures = {"p90_ms": self.per_token() * 1e3, "delay_ms": self.delay() * 1e3}
        return figures | {"served_s": self.tokens_s() / dataset.reply[0], "met": self.is_met(LIMIT_S)}

    def is_met(self, limit_s: float) -> bool:
        """Whether nine of ten requests take limit_s a token at most, and requests are begun as they come."""
        return self.per_token() <= limit_s and self.delay() <= DELAY_S

    def over_time(self) -> JsonObject:
        """Of each step: when it ended, replies, and the size of their chunks (empty: not chosen)."""
        steps = {"ended_s": self.ended.round(4), "replies": self.batches, "sizes": self.sizes}
        return {name: each.tolist() for name, each in steps.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests [N] by when they come: tokens of their prompts and of their replies. The first n_begun are under way
    from the beginning, with the rest of their replies before them."""

    came: Floats
    prompts: Ints
    n_tokens: Ints

    @classmethod
    def at_random(
        cls, dataset: Dataset, rate: float, n_requests: int, rng: np.random.Generator, n_begun: int = 0
    ) -> Arrivals:
        """`rate` a second on average (Poisson), behind those that are under way: a reply is met the more likely the
        longer it is, and anywhere in it."""
        came = np.cumsum(rng.exponential(1 / rate, n_requests))
        prompts, n_tokens = (lengths(*of, n_requests, rng) for of in (dataset.prompt, dataset.reply))
        if n_begun:
            some = lengths(*dataset.reply, _DRAWN * n_begun, rng)
            met = rng.choice(some, n_begun, p=some / some.sum())
            rest = np.ceil(met * rng.random(n_begun)).astype(np.int64)
            n_tokens = np.concatenate((np.maximum(rest, 1), n_tokens))
        before = np.zeros(n_begun, np.int64)
        return cls(np.concatenate((before, came)), np.concatenate((before, prompts)), n_tokens)


def served(
    dataset: Dataset,
    mode: Mode,
    seconds: Seconds,
    *,
    rate: float,
    n_requests: int,
    seed: int = 0,
    max_running: int = 256,
    n_begun: int = 0,
    n_context: int = 0,
    until: float = np.inf,
) -> Trace:
    """`rate` requests a second on average, each at random (Poisson), behind n_begun that are under way; the steps that
    end within `until` seconds. First come, first served: prompts share the rounds of replies, up to _MAX_ROUND_ROWS of
    them in a round. Each reply sees n_context rows in pages."""
    rng = np.random.default_rng(seed)
    arrivals = Arrivals.at_random(dataset, rate, n_requests, rng, n_begun)
    came = arrivals.came
    replies = SimulatedReplies(dataset.curve, mode, BLOCK, rng, n_context=n_context)
    first, last = np.full((2, len(came)), np.nan)
    n_got = np.zeros(len(came), np.int64)
    n_left = arrivals.prompts.copy()  # rows of prompts that have not run
    waiting: deque[int] = deque()
    running = np.zeros(0, np.int64)
    ended: list[float] = []
    batches: list[int] = []
    now = 0.0
    arrived = 0
    while arrived < len(came) or waiting or len(running):
        if not waiting and not len(running):
            now = max(now, came[arrived])
        while arrived < len(came) and came[arrived] <= now:
            waiting.append(arrived)
            arrived += 1
        n_rows, begun = _admit(waiting, n_left, max_running - len(running))
        outcome = replies.step(n_rows)
        now += float(seconds(np.array(outcome.rows.sum() + n_rows, float), len(running)))
        if now > until:
            break
        ended.append(now)
        batches.append(len(running))
        gaining = running[outcome.gained > 0]
        first[gaining[np.isnan(first[gaining])]] = now
        last[gaining] = now
        n_got[running] += outcome.gained
        replies.drop(outcome.ended)
        replies.add(arrivals.n_tokens[begun])
        running = np.concatenate((running[~outcome.ended], begun))
    sizes = np.array(replies.sizes, np.int64).reshape(-1)[: len(ended)]
    n = int(np.searchsorted(came, until))
    return Trace(came[:n], first[:n], last[:n], n_got[:n], np.array(ended), np.array(batches), sizes, until)


def _admit(waiting: deque[int], n_left: Ints, n_places: int) -> tuple[int, Ints]:
    """Rows of prompts in a round, and the requests whose replies begin after it."""
    n_rows = 0
    begun: list[int] = []
    while waiting and n_rows < _MAX_ROUND_ROWS and len(begun) < n_places:
        part = min(int(n_left[waiting[0]]), _MAX_ROUND_ROWS - n_rows)
        n_left[waiting[0]] -= part
        n_rows += part
        if not n_left[waiting[0]]:
            begun.append(waiting.popleft())
    return n_rows, np.array(begun, np.int64)


def simulated(dataset: Dataset, name: str, costs: Costs, *, rate: float, n_requests: int, **more: Any) -> Trace:
    """A trace in the mode of that name. more: as `served` takes it."""
    mode: Mode = costs.sizes() if name == AUTO else Fixed(int(name)) if name.isdecimal() else name
    seconds = costs.next if name == NEXT else costs.chunks
    return served(dataset, mode, seconds, rate=rate, n_requests=n_requests, n_context=costs.n_context, **more)


def capacities(
    dataset: Dataset, costs: Costs, *, seconds: float, workers: int, n_most: int = 256, modes: Sequence[str] = MODES
) -> Rows:
    """By mode the requests a second at which nine of ten take LIMIT_S a token at most, and what they take at others; of
    traces that requests come in for so many seconds. n_most: replies at once."""
    work = partial(_capacity, dataset=dataset, costs=costs, seconds=seconds, n_most=n_most)
    return list(in_processes(work, modes, workers))


def _capacity(name: str, *, dataset: Dataset, costs: Costs, seconds: float, n_most: int) -> dict[str, Any]:
    def at(rate: float) -> Trace:
        n = max(_LEAST, int(rate * seconds))
        return simulated(dataset, name, costs, rate=rate, n_requests=n, max_running=n_most)

    found = capacity(at, LIMIT_S, low=_LOWEST, high=_HIGHEST)
    rates = [part * (found or 1.0) for part in _PARTS]
    row = {"dataset": dataset.name, "mode": name, **SIMULATED, "limit_ms": LIMIT_S * 1e3, "requests_s": found}
    return row | {"rates": rates, "p90_ms": [at(rate).per_token() * 1e3 for rate in rates]}


def capacity(trace: Callable[[float], Trace], limit_s: float, *, low: float, high: float) -> float:
    """The highest rate from `low` to `high`, to 3 %, at which a trace is within the limit; 0 where there is none."""
    rates = np.geomspace(low, high, 2 + int(np.log(high / low) / np.log(1.03))).tolist()
    n_met = bisect(rates, 0, key=lambda rate: 0 if trace(rate).is_met(limit_s) else 1)
    return rates[n_met - 1] if n_met else 0.0


def most_requests(rate: float, seconds: float) -> int:
    """More than come at random in so many seconds."""
    return int(rate * seconds + 6 * (rate * seconds) ** 0.5) + 1
