"""Simulated loads: tokens a second at a fixed number of sequences, and traces of requests that arrive at random."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.bench.commit_curves import Curve, Dataset
from ramet.bench.simulated import Decoder, Mode, Seconds, Sequences

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCK = 32
DELAY_S = 1.0  # to a request's first tokens: with more, they come faster than they are served
_ENDLESS = 1e5  # requests a second
_DRAWN = 16  # replies of which one is met under way


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of decoding alone: tokens a second, tokens that a sequence gains in a step, rows of a step, and the mean size of
    chunks (None: of whole blocks, or a token a step)."""

    tokens_s: float
    tokens_step: float
    rows: float
    size: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Of S steps of N sequences: rows that each ran and tokens that it gained [S, N], and the sizes of chunks that were
    chosen [S, G] (None: of whole blocks, or a token a step)."""

    rows: Ints
    gained: Ints
    sizes: Ints | None

    def throughput(self, seconds: Seconds, batch: int) -> Throughput:
        """Were they run by so many sequences at once: the N are as many groups as that makes, and some left over."""
        n = self.rows.shape[1] // batch * batch
        assert n
        together = self.rows[:, :n].reshape(len(self.rows), -1, batch).sum(2)
        tokens, time = self.gained[:, :n].sum(), seconds(together.astype(float), batch).sum()
        size = None if self.sizes is None else float(self.sizes.mean())
        return Throughput(float(tokens / time), float(self.gained.mean()), float(together.mean()), size)


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
) -> Steps:
    """With `batch` replies in each group at all times, each followed by another; each sees n_context rows in pages. The
    first third is not counted.

    Where sizes are not chosen, sequences are independent of one another, and what one group did tells of any batch.
    """
    rng = np.random.default_rng(seed)
    sequences = Sequences(curve or dataset.curve(), BLOCK, rng)
    sequences.add(lengths(*dataset.reply, n_groups * batch, rng))
    decoder = Decoder(sequences, mode, BLOCK, n_groups, n_context)
    found = np.zeros((2, n_steps, n_groups * batch), np.int64)
    for n in range(n_steps):
        stepped = decoder.step()
        found[:, n] = stepped.rows, stepped.gained
        sequences.replace(stepped.ended, lengths(*dataset.reply, int(stepped.ended.sum()), rng))
    rows, gained = found[:, n_steps // 3 :]
    sizes = np.array(decoder.sizes)[n_steps // 3 :] if decoder.sizes else None
    return Steps(rows, gained, sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests that came and went. Of each [N]: when it came, when its first tokens and its last were there (NaN: never
    seen), and how many it got. Of each step [T]: when it ended, how many sequences gained, and the size of their chunks
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


@dataclass(slots=True)
class _Prompt:
    number: int
    n_left: int


def served(
    dataset: Dataset,
    mode: Mode,
    seconds: Seconds,
    *,
    rate: float,
    n_requests: int,
    seed: int = 0,
    curve: Curve | None = None,
    max_running: int = 256,
    max_round_rows: int = 2048,
    n_begun: int = 0,
    n_context: int = 0,
    until: float = np.inf,
) -> Trace:
    """`rate` requests a second on average, each at random (Poisson), behind n_begun that are under way; the steps that
    end within `until` seconds. First come, first served: prompts share the rounds of replies, up to max_round_rows of
    them in a round. Each reply sees n_context rows in pages."""
    rng = np.random.default_rng(seed)
    asked = Arrivals.at_random(dataset, rate, n_requests, rng, n_begun)
    came, n_requests = asked.came, len(asked.came)
    decoder = Decoder(Sequences(curve or dataset.curve(), BLOCK, rng), mode, BLOCK, n_context=n_context)
    first, last = np.full((2, n_requests), np.nan)
    n_got = np.zeros(n_requests, np.int64)
    waiting: deque[_Prompt] = deque()
    numbers = np.zeros(0, np.int64)  # of the replies under way
    ended, batches, now, arrived = list[float](), list[int](), 0.0, 0
    while arrived < n_requests or waiting or len(numbers):
        if not waiting and not len(numbers):
            now = max(now, came[arrived])
        while arrived < n_requests and came[arrived] <= now:
            waiting.append(_Prompt(arrived, int(asked.prompts[arrived])))
            arrived += 1
        n_rows, begun = _admit(waiting, max_round_rows, max_running - len(numbers))
        stepped = decoder.step(n_rows)
        now += float(seconds(np.array(stepped.rows.sum() + n_rows, float), len(numbers)))
        if now > until:
            break
        ended.append(now)
        batches.append(len(numbers))
        gaining = numbers[stepped.gained > 0]
        first[gaining[np.isnan(first[gaining])]] = now
        last[gaining] = now
        n_got[numbers] += stepped.gained
        decoder.sequences.drop(stepped.ended)
        decoder.sequences.add(asked.n_tokens[begun])
        numbers = np.concatenate((numbers[~stepped.ended], begun))
    sizes = np.array(decoder.sizes, np.int64).reshape(-1)[: len(ended)]
    n = int(np.searchsorted(came, until))
    return Trace(came[:n], first[:n], last[:n], n_got[:n], np.array(ended), np.array(batches), sizes, until)


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


def lengths(mean: float, deviation: float, n: int, rng: np.random.Generator) -> Ints:
    """[n] from 1 on, as log-normal numbers of that mean and standard deviation."""
    spread = np.log1p((deviation / mean) ** 2)
    drawn = rng.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), n)
    return np.maximum(drawn.round(), 1).astype(np.int64)
