"""Commits: how many tokens a sequence gains in a step, by the size of its chunk, from what steps have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import BoolArray, IntArray

_HALF_LIFE = 1000.0  # chunks after which what one showed counts half
_PRIOR = 0.1  # chunks for which the guess counts at first
_WARM = 32  # chunks before the numbers are worth choosing by
_RENEWED = 128  # steps after which the rates are solved again
_HEAVY = 1e12  # a weight at which all are brought down
_LEAST = 1e-9  # what they are brought down to: none may vanish
_NONE, _SOME, _ALL = range(3)  # of the masked rows before a row, how many passed
_NEXT = np.array([1, 2, 2])[:, None, None]  # steps in which all passed, after none, one or several and one more
_STREAKS = 4  # rows that passed in a row, of which more make no difference to what is expected

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """[B+1] by the size of a chunk: tokens that a sequence gains in a step, and rows that it runs, on average over its
    blocks. Sizes 0 and 1 gain nothing: a token is a row twice, masked and then known."""

    tokens: Floats
    rows: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """Of a step's N chunks that had masked rows: `sizes` [N], how many, but for those behind the reply's end; `rows`,
    flat, which of them were sure enough, in their order; one that was accepted so that the step gains something at all
    has not passed. streaks [N]: how many rows of the same block had passed in a row as the step began, each in a step
    in which all did."""

    rows: BoolArray
    sizes: Ints
    streaks: IntArray

    def of(self, which: BoolArray) -> Passed:
        """Of some of the chunks [N]."""
        if which.all():
            return self
        return Passed(self.rows[np.repeat(which, self.sizes)], self.sizes[which], self.streaks[which])


def by_policy(passed: Passed, groups: IntArray, policies: Sequence[UnmaskPolicy]) -> dict[UnmaskPolicy, Passed]:
    """The chunks by the policy of their reply, which is policies[groups[i]] for chunk i."""
    return {policies[group]: passed.of(groups == group) for group in np.unique(groups).tolist()}


class Commits:
    """Of one threshold and strategy, for blocks of `block` rows.

    For the j-th masked row of a chunk it knows how often it passes where none or some of the masked rows before it did;
    and where all did, by how many passed in a row before it, in this chunk or in those before: what is sure stays sure,
    in however many chunks it is taken, and small chunks must not take a long run for many short ones. From that
    follows how many of the first m pass, and from that the steps that a block takes.
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
        """Whether it has seen enough to choose by. Before, the largest chunk shows most."""
        return self.n_seen >= _WARM

    def observe(self, shown: Passed) -> None:
        """Of a step."""
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
        """As of what was seen before the last `renew` that was due."""
        if self._rates is None:
            self._rates = solve(self._passes / self._visits)
        return self._rates

    def renew(self) -> None:
        """Behind each step. To solve the rates again takes as long as some steps, and is not due behind each."""
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
    """[B+1, B+1] how likely it is that of m masked rows k are accepted, by m and k: those that pass, or one.

    passing [3, B]: how likely a row passes: the j-th where none or some before it did; and where all did, behind so
    many. `streak` passed in a row before the first.
    """
    found = _passing(passing, streak)
    found[1:, 1] += found[1:, 0]
    found[1:, 0] = 0
    return found


def _passing(passing: Floats, streak: int) -> Floats:
    """As `counted`, by those that pass alone."""
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
    """What chunks of each size gain. passing [3, B]: see `counted`.

    A chunk is the pending rows and then masked ones. What is accepted is pending in the step after, the last of a block
    beside the next block's first masks. So what a block takes follows from what is pending as it begins, and that from
    how the block before ended, which hardly depends on how it began.
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
    """By the rows that passed in a row before a chunk, 0 to _STREAKS: how likely it is that of m masked rows k are
    accepted but not all m passed, [S, B+1, B+1], and that all passed, [S, B+1]."""

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
    """[C, B+1, Q] what is summed up over a block's steps, by the size of chunks [C, 1] and what is pending as it
    begins: the cost of steps with so many masked rows [C, B+1], and in the end [C, B+1, Q], by what the last one
    leaves pending. Steps behind one whose masked rows all passed, or behind two, have odds of their own: behind one,
    what is pending has passed in a row, and behind two about a chunk."""
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
