"""Commits: estimates how many tokens a sequence gains in a step, by the size of its chunk, from the steps so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import BoolArray, IntArray

_HALF_LIFE = 1000.0  # chunks after which a chunk counts half
_PRIOR = 0.1  # chunks for which the guess counts at first
_WARM = 32  # chunks before the estimates are good enough to choose by
_RENEWED = 128  # steps after which the rates are solved again
_HEAVY = 1e12  # the weight at which all weights are divided by it
_LEAST = 1e-9  # the least weight after that: none may vanish
_NONE, _SOME, _ALL = range(3)  # of the masked rows before a row, how many passed
_NEXT = np.array([1, 2, 2])[:, None, None]  # steps in which all passed, after none, one or several and one more
_STREAKS = 4  # rows that passed in a row: more make no difference to the estimates

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """[B+1] by the size of a chunk: the mean tokens that a sequence gains in a step, and the mean rows that it runs.
    Sizes 0 and 1 gain nothing: a token is a row twice, masked and then known."""

    tokens: Floats
    rows: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """Which masked rows passed in a step, of its N chunks that had any. A row passes where it is sure enough; one that
    is accepted only so that the step gains a token has not passed.

    sizes [N]: masked rows of each chunk, without those behind the reply's end. rows [sum(sizes)]: whether each passed.
    streaks [N]: how many rows of the block had passed in a row before the step, in steps in which all did.
    """

    rows: BoolArray
    sizes: Ints
    streaks: IntArray

    def of(self, which: BoolArray) -> Passed:
        """The same of some of the chunks [N]."""
        if which.all():
            return self
        return Passed(self.rows[np.repeat(which, self.sizes)], self.sizes[which], self.streaks[which])


def by_policy(passed: Passed, groups: IntArray, policies: Sequence[UnmaskPolicy]) -> dict[UnmaskPolicy, Passed]:
    """The chunks by the policy of their reply, which is policies[groups[i]] for chunk i."""
    return {policies[group]: passed.of(groups == group) for group in np.unique(groups).tolist()}


class Commits:
    """The estimates for one threshold and strategy, with blocks of `block` rows.

    It counts how often the j-th masked row of a chunk passes: where none of the masked rows before it passed, where
    some did, and where all did. The last is counted by how many passed in a row before it, in this chunk or in earlier
    ones: otherwise small chunks, which cut a run of sure rows, would take one long run for many short ones. From these
    shares follows how many of the first m rows pass, and from that the steps that a block takes.
    """

    def __init__(self, block: int, half_life: float = _HALF_LIFE) -> None:
        assert block >= 2
        self.block = block
        self.n_seen = 0
        self._growth = 2 ** (1 / half_life)
        self._weight = 1.0  # of the next chunk: later ones weigh more, instead of earlier ones less
        guess = 0.35 * 0.8 ** np.arange(block)
        self._visits = np.full((3, block), _PRIOR)
        self._passes = guess * self._visits
        self._rates: Rates | None = None
        self._n_steps = 0
        self._due = 1

    @property
    def is_warm(self) -> bool:
        """Whether it has seen enough chunks to choose sizes by. Until then the largest chunks show most."""
        return self.n_seen >= _WARM

    def observe(self, shown: Passed) -> None:
        """Count the rows of a step."""
        sizes = shown.sizes
        if not len(sizes):
            return
        passed = shown.rows.astype(np.int64)
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        at = np.arange(len(passed)) - starts
        above = np.cumsum(passed) - passed
        before = above - above[starts]
        streaks = np.repeat(shown.streaks, sizes)
        runs = (before == at) & (at + streaks > 0)
        kind = np.where(runs, _ALL, np.where(before == 0, _NONE, _SOME))
        place = np.where(runs, np.minimum(at + streaks, self.block - 1), at)
        np.add.at(self._visits, (kind, place), self._weight)
        np.add.at(self._passes, (kind, place), self._weight * passed)
        self.n_seen += len(sizes)
        self._age(len(sizes))

    def rates(self) -> Rates:
        """The rates, as the last `renew` that was due has solved them."""
        if self._rates is None:
            self._rates = solve(self._passes / self._visits)
        return self._rates

    def renew(self) -> None:
        """Solve the rates again, if due. Called after each step; due ever more rarely, as it takes as long as steps."""
        self._n_steps += self.is_warm
        if self._n_steps >= self._due:
            self._due = self._n_steps + min(self._n_steps, _RENEWED)
            self._rates = solve(self._passes / self._visits)

    def _age(self, n_chunks: int) -> None:
        self._weight *= self._growth**n_chunks
        if self._weight > _HEAVY:
            shares = self._passes / self._visits  # what has not been seen for long stays as it was
            self._visits = np.maximum(self._visits / self._weight, _LEAST)
            self._passes = shares * self._visits
            self._weight = 1.0


def counted(passing: Floats, streak: int = 0) -> Floats:
    """[B+1, B+1] the probability that k of m masked rows are accepted, by m and k: those that pass, one at least.

    passing [3, B]: the probability that the j-th row passes where none, some or all before it did; where all did, j
    counts these rows. `streak` rows passed in a row before the first.
    """
    found = _passing(passing, streak)
    found[1:, 1] += found[1:, 0]
    found[1:, 0] = 0
    return found


def _passing(passing: Floats, streak: int) -> Floats:
    """[B+1, B+1] the probability that k of m masked rows pass, by m and k, as in `counted`."""
    n = passing.shape[1]
    found = np.zeros((n + 1, n + 1))
    found[0, 0] = 1
    for m in range(1, n + 1):
        passes = np.full(m, passing[_SOME, m - 1])
        passes[0] = passing[_NONE, m - 1]
        if m > 1 or streak:
            passes[-1] = passing[_ALL, min(streak + m - 1, n - 1)]
        found[m, :m] = found[m - 1, :m] * (1 - passes)
        found[m, 1 : m + 1] += found[m - 1, :m] * passes
    return found


def solve(passing: Floats) -> Rates:
    """Solve what chunks of each size gain. passing [3, B]: see `counted`. The model is our own (docs/design/blocks.md).

    A chunk is the pending rows and then masked ones. Accepted rows are pending in the next step; the last ones of a
    block are pending beside the first masked rows of the next. So the steps of a block depend on how many rows are
    pending as it begins. That depends on how the block before ended, which hardly depends on how it began.
    """
    block = passing.shape[1]
    odds = _Odds.of(passing)
    sizes, pending = np.arange(2, block + 1)[:, None], np.arange(block + 1)

    def cost(masked: Ints) -> Floats:
        return np.stack((np.ones(masked.shape), np.minimum(sizes, pending) + masked), -1)

    taken = _walk(odds, sizes, cost, np.zeros((len(sizes), block + 1, 2)))
    steps, rows = _walk(odds, sizes, lambda _: np.zeros(2), taken)[:, 0].T
    found = np.zeros((2, block + 1))
    found[:, 2:] = block / steps, rows / steps
    return Rates(np.maximum.accumulate(found[0]), found[1])


@dataclass(frozen=True, slots=True, eq=False)
class _Odds:
    """Probabilities by the rows that passed in a row before a chunk, 0 to _STREAKS. accepted [S, B+1, B+1]: k of m
    masked rows are accepted, and not all m passed. sure [S, B+1]: all m passed."""

    accepted: Floats
    sure: Floats

    @classmethod
    def of(cls, passing: Floats) -> _Odds:
        found = np.stack([_passing(passing, streak) for streak in range(_STREAKS + 1)])
        every = np.arange(1, found.shape[1])
        sure = np.ones(found.shape[:2])
        sure[:, 1:] = found[:, every, every]
        found[:, every, every] = 0
        found[:, 1:, 1] += found[:, 1:, 0]
        found[:, 1:, 0] = 0
        return cls(found, sure)


def _walk(odds: _Odds, sizes: Ints, cost: Callable[[Ints], Floats], end: Floats) -> Floats:
    """[C, B+1, Q] the expected sums over a block's steps, by the size of chunks `sizes` [C, 1] and the rows pending as
    the block begins. `cost` gives what a step with so many masked rows adds [C, B+1]; `end` [C, B+1, Q] is added at the
    end, by the rows that the last step leaves pending. Steps after one, or after several, whose masked rows all passed
    have odds of their own: after one, the pending rows have passed in a row, and after several about a chunk."""
    block = odds.sure.shape[1] - 1
    pending = np.arange(block + 1)
    places = np.arange(len(sizes))[:, None]
    first = np.where(pending > 0, pending, sizes)
    streaks = np.minimum((np.zeros_like(first), first, np.maximum(sizes, pending)), _STREAKS)
    found = np.zeros((3, block + 1, *end.shape))  # behind so many such steps; by the rows that are still masked
    found[:, 0] = end
    for left in range(1, block + 1):
        some = np.arange(1, left + 1)
        after = found[:, left - some, :, some]  # [accepted, 3, C, Q]
        odd = np.tensordot(odds.accepted[:, : left + 1, 1 : left + 1], after[:, 0], 1)  # by the masked rows that run
        masked = np.clip(sizes - pending, 0, left)
        sure = odds.sure[streaks, masked] * (masked > 0)
        then = after[np.maximum(masked, 1) - 1, _NEXT, places]
        here = odd[streaks, masked, places] + sure[..., None] * then + cost(masked)
        found[:, left] = np.where((masked > 0)[..., None], here, cost(masked) + here[:, :, :1])
    summed: Floats = found[0, block]
    return summed
