"""Requests that come at random: simulated over the times of steps, and how many a second are served within a limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.bench.core.named_shapes import BLOCK
from ramet.bench.core.samples import JsonObject
from ramet.bench.elastic.cells import SIMULATED, Costs, in_processes, lengths
from ramet.bench.elastic.commit_curves import Curve, Dataset
from ramet.bench.elastic.report import AUTO, NEXT, WHOLE
from ramet.bench.elastic.simulated import Mode, Seconds, SimulatedReplies
from ramet.denoise.elastic import Fixed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FIRST = 1_000_000  # the number of the first request that nobody else's ids have
LIMIT_S = 0.05  # of nine of ten requests, from one token to the next
DELAY_S = 1.0  # to a request's first tokens: with more, they come faster than they are served
MODES = (AUTO, "2", "4", "8", "16", "32", WHOLE, NEXT)
_LOWEST, _HIGHEST, _LEAST = 0.5, 500.0, 100  # requests a second that are tried first, and requests at least
_PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 1.6)  # of its capacity, at which a mode is shown
_ENDLESS = 1e5  # requests a second
_DRAWN = 16  # replies of which one is met under way


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

    def over_time(self) -> JsonObject:
        """Of each step: when it ended, replies, and the size of their chunks (empty: not chosen)."""
        return {
            "ended_s": self.ended.round(4).tolist(), "replies": self.batches.tolist(), "sizes": self.sizes.tolist(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests [N] by when they come: tokens of their prompts and of their replies. The first n_begun are under way
    from the beginning, with the rest of their replies before them."""

    came: Floats
    prompts: Ints
    n_tokens: Ints
    n_begun: int

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
            came = np.concatenate((np.zeros(n_begun), came))
            prompts = np.concatenate((np.zeros(n_begun, np.int64), prompts))
        return cls(came, prompts, n_tokens, n_begun)


def served(
    dataset: Dataset, mode: Mode, seconds: Seconds, *, rate: float, n_requests: int, seed: int = 0,
    curve: Curve | None = None, max_running: int = 256, max_round_rows: int = 2048, n_begun: int = 0,
    n_context: int = 0, until: float = np.inf,
) -> Trace:  # fmt: skip
    """`rate` requests a second on average, each at random (Poisson), behind n_begun that are under way; the steps that
    end within `until` seconds. First come, first served: prompts share the rounds of replies, up to max_round_rows of
    them in a round. Each reply sees n_context rows in pages."""
    rng = np.random.default_rng(seed)
    arrivals = Arrivals.at_random(dataset, rate, n_requests, rng, n_begun)
    came, n_requests = arrivals.came, len(arrivals.came)
    replies = SimulatedReplies(curve or dataset.curve, mode, BLOCK, rng, n_context=n_context)
    first, last = np.full((2, n_requests), np.nan)
    n_got = np.zeros(n_requests, np.int64)
    waiting: deque[_Prompt] = deque()
    numbers = np.zeros(0, np.int64)  # of the replies under way
    ended, batches, now, arrived = list[float](), list[int](), 0.0, 0
    while arrived < n_requests or waiting or len(numbers):
        if not waiting and not len(numbers):
            now = max(now, came[arrived])
        while arrived < n_requests and came[arrived] <= now:
            waiting.append(_Prompt(arrived, int(arrivals.prompts[arrived])))
            arrived += 1
        n_rows, begun = _admit(waiting, max_round_rows, max_running - len(numbers))
        outcome = replies.step(n_rows)
        now += float(seconds(np.array(outcome.rows.sum() + n_rows, float), len(numbers)))
        if now > until:
            break
        ended.append(now)
        batches.append(len(numbers))
        gaining = numbers[outcome.gained > 0]
        first[gaining[np.isnan(first[gaining])]] = now
        last[gaining] = now
        n_got[numbers] += outcome.gained
        replies.drop(outcome.ended)
        replies.add(arrivals.n_tokens[begun])
        numbers = np.concatenate((numbers[~outcome.ended], begun))
    sizes = np.array(replies.sizes, np.int64).reshape(-1)[: len(ended)]
    n = int(np.searchsorted(came, until))
    return Trace(came[:n], first[:n], last[:n], n_got[:n], np.array(ended), np.array(batches), sizes, until)


@dataclass(slots=True)
class _Prompt:
    number: int
    n_left: int


def _admit(waiting: deque[_Prompt], n_rows: int, n_places: int) -> tuple[int, Ints]:
    """Rows of prompts in a round, and the requests whose replies begin after it."""
    used, begun = 0, list[int]()
    while waiting and used < n_rows and len(begun) < n_places:
        prompt = waiting[0]
        part = min(prompt.n_left, n_rows - used)
        prompt.n_left -= part
        used += part
        if not prompt.n_left:
            begun.append(waiting.popleft().number)
    return used, np.array(begun, np.int64)


def simulated(dataset: Dataset, name: str, costs: Costs, *, rate: float, n_requests: int, **more: Any) -> Trace:
    """A trace in the mode of that name. more: as `served` takes it."""
    mode: Mode = costs.sizes() if name == AUTO else Fixed(int(name)) if name.isdecimal() else name
    seconds = costs.next if name == NEXT else costs.chunks
    return served(dataset, mode, seconds, rate=rate, n_requests=n_requests, n_context=costs.n_context, **more)


def capacities(
    dataset: Dataset, costs: Costs, *, seconds: float, workers: int, n_most: int = 256, modes: Sequence[str] = MODES
) -> list[dict[str, Any]]:
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
    return {
        "dataset": dataset.name, "mode": name, **SIMULATED, "limit_ms": LIMIT_S * 1e3, "requests_s": found,
        "rates": rates, "p90_ms": [at(rate).per_token() * 1e3 for rate in rates],
    }  # fmt: skip


def capacity(trace: Callable[[float], Trace], limit_s: float, *, low: float = 0.1, high: float = 100.0) -> float:
    """The highest rate, to 3 %, at which nine of ten requests take limit_s a token at most, and requests are begun as
    they come, within DELAY_S; 0 where there is none from `low` on. high: tried first; more is, where all of that is
    met, but for rates above _ENDLESS."""

    def is_met(rate: float) -> bool:
        found = trace(rate)
        return found.per_token() <= limit_s and found.delay() <= DELAY_S

    if not is_met(low):
        return 0.0
    most = high
    while high > 1.03 * low:
        rate = (low * high) ** 0.5
        low, high = (rate, high) if is_met(rate) else (low, rate)
        if high == most <= min(1.03 * low, _ENDLESS):
            high = most = 4 * most
    return low


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
