"""Sequences that gain tokens by a commit curve: what running replies do in a step, in arrays of all at once, by
themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.bench.elastic.commit_curves import Curve
from ramet.denoise.commits import Passed
from ramet.tree import BoolArray

Ints = npt.NDArray[np.int64]

_MASKED, _PENDING, _CACHED = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """What a step did, by sequence [R]: rows that ran, tokens gained, and whether the reply is complete. `passed`:
    for Commits, where there are chunks."""

    rows: Ints
    gained: Ints
    ended: BoolArray
    passed: Passed | None = None


class Sequences:
    """Replies under way, each in a block [R, B]; `rest` [R] are tokens that a reply still has from its block's
    start."""

    def __init__(self, curve: Curve, block: int, rng: np.random.Generator) -> None:
        self._curve, self._block, self._rng = curve, block, rng
        self._passing = curve.passing(block)
        self._states = np.zeros((0, block), np.int8)
        self._rest = np.zeros(0, np.int64)
        self._carried = np.zeros(0, np.int64)  # pending rows of the block before
        self._runs = np.zeros(0, np.bool_)  # the rest of the block is sure
        self._streaks = np.zeros(0, np.int64)  # rows of the block that passed in a row, in steps in which all did

    def __len__(self) -> int:
        return len(self._rest)

    def add(self, lengths: Ints) -> None:
        """Replies of so many tokens."""
        n = len(lengths)
        self._states = np.concatenate((self._states, np.zeros((n, self._block), np.int8)))
        self._rest = np.concatenate((self._rest, lengths))
        self._carried = np.concatenate((self._carried, np.zeros(n, np.int64)))
        self._runs = np.concatenate((self._runs, np.zeros(n, np.bool_)))
        self._streaks = np.concatenate((self._streaks, np.zeros(n, np.int64)))

    def replace(self, which: BoolArray, lengths: Ints) -> None:
        """Others, of so many tokens, in the places of some."""
        self._states[which] = _MASKED
        self._rest[which] = lengths
        self._carried[which] = self._streaks[which] = 0
        self._runs[which] = False

    def drop(self, which: BoolArray) -> None:
        for name in ("_states", "_rest", "_carried", "_runs", "_streaks"):
            setattr(self, name, getattr(self, name)[~which])

    def uncached(self) -> Ints:
        """[R] rows that could run."""
        found: Ints = self._carried + ((self._states != _CACHED) & self._wanted()).sum(1)
        return found

    def next_token(self) -> StepOutcome:
        """A token each."""
        self._rest = self._rest - 1
        ones = np.ones(len(self), np.int64)
        return StepOutcome(ones, ones, self._rest == 0)

    def whole(self) -> StepOutcome:
        """A step of whole blocks, or of those that are decided the one that stores them."""
        masked = self._states == _MASKED
        decided = ~masked.any(1)
        accepted, _ = self._accept(masked)
        gained = self._take(accepted)
        ended = self._ended()
        self._open(decided & ~ended)
        return StepOutcome(np.full(len(self), self._block), gained, ended)

    def chunks(self, size: int | Ints) -> StepOutcome:
        """A step of chunks, of one size or of a size each [R]: pending rows, then masked ones. Those of a size above
        the block are of whole blocks, of which nothing is kept before all is known."""
        whole = np.broadcast_to(np.asarray(size) > self._block, len(self))[:, None]
        carried = np.minimum(self._carried, size)
        left = size - carried
        wanted = self._wanted() | whole
        pending = _first((self._states == _PENDING) & wanted, left)
        masked = _first((self._states == _MASKED) & wanted, left - pending.sum(1))
        accepted, passed = self._accept(masked)
        shown = self._shown(passed, masked)
        self._states[pending & ~whole] = _CACHED
        self._carried = self._carried - carried
        gained = self._take(accepted)
        ended = self._ended()
        decided = ~(self._states == _MASKED).any(1) & ~ended
        self._carried[decided] += (self._states[decided] == _PENDING).sum(1)
        self._open(decided)
        return StepOutcome(carried + pending.sum(1) + masked.sum(1), gained, ended, shown)

    def _shown(self, passed: BoolArray, masked: BoolArray) -> Passed:
        """But for rows behind the end."""
        told = masked & (self._rest[:, None] > np.arange(self._block))
        sizes = told.sum(1)
        some = np.flatnonzero(sizes)
        shown = Passed(passed[told], sizes[some], self._streaks[some].astype(np.int32))
        every = (passed | ~told)[some].all(1)
        self._streaks[some] = np.where(every, self._streaks[some] + sizes[some], 0)
        return shown

    def _wanted(self) -> BoolArray:
        """[R, B]: not behind an end that is committed."""
        last = np.minimum(self._rest, self._block) - 1
        known = (self._rest <= self._block) & (self._states[np.arange(len(self)), last] != _MASKED)
        found: BoolArray = ~known[:, None] | (np.arange(self._block) <= last[:, None])
        return found

    def _accept(self, masked: BoolArray) -> tuple[BoolArray, BoolArray]:
        """Which of the masked rows are accepted, and which of them passed."""
        n = len(self)
        begun = self._rng.random(n) < self._curve.runs
        self._runs = self._runs & self._curve.lasting | begun
        luck = self._rng.random(masked.shape) < self._passing[np.maximum(np.cumsum(masked, 1) - 1, 0)]
        passed = masked & (luck | self._runs[:, None])
        accepted = passed.copy()
        forced = masked.any(1) & ~passed.any(1)
        accepted[forced, masked[forced].argmax(1)] = True
        return accepted, passed

    def _take(self, accepted: BoolArray) -> Ints:
        self._states[accepted] = _PENDING
        gained: Ints = (accepted & (np.arange(self._block) < self._rest[:, None])).sum(1)
        return gained

    def _ended(self) -> BoolArray:
        """[R]: nothing up to the reply's end is masked."""
        inside = np.arange(self._block) < self._rest[:, None]
        found: BoolArray = (self._rest <= self._block) & ~((self._states == _MASKED) & inside).any(1)
        return found

    def _open(self, which: BoolArray) -> None:
        """The next block."""
        self._states[which] = _MASKED
        self._rest[which] -= self._block
        self._runs[which] = False
        self._streaks[which] = 0


def _first(which: BoolArray, n: Ints) -> BoolArray:
    """The first n [R] of each row's."""
    found: BoolArray = which & (np.cumsum(which, 1) <= n[:, None])
    return found
