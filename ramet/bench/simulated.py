"""Simulated decoding: sequences that gain tokens by a commit curve, in rounds that take what a latency says.

No model runs: every figure from here is of a simulation. What a sequence does in a step is what
`denoise/live_blocks.py` does, in arrays of all sequences at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ramet.bench.commit_curves import Curve
from ramet.denoise.commits import Commits
from ramet.denoise.elastic import ChunkSizes, Demand
from ramet.tree import BoolArray

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Seconds = Callable[[Floats], Floats]
Mode = ChunkSizes | Literal["block", "next"]  # chunks; whole blocks and a pass that stores each; a token a step

_MASKED, _PENDING, _CACHED = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """What a step did, by sequence [R]: rows that ran, tokens gained, and whether the reply is complete. `passed`:
    which of the masked rows of each were sure enough, for Commits."""

    rows: Ints
    gained: Ints
    ended: BoolArray
    passed: list[BoolArray] = field(default_factory=list)


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

    def __len__(self) -> int:
        return len(self._rest)

    def add(self, lengths: Ints) -> None:
        """Replies of so many tokens."""
        n = len(lengths)
        self._states = np.concatenate((self._states, np.zeros((n, self._block), np.int8)))
        self._rest = np.concatenate((self._rest, lengths))
        self._carried = np.concatenate((self._carried, np.zeros(n, np.int64)))
        self._runs = np.concatenate((self._runs, np.zeros(n, np.bool_)))

    def drop(self, which: BoolArray) -> None:
        for name in ("_states", "_rest", "_carried", "_runs"):
            setattr(self, name, getattr(self, name)[~which])

    def uncached(self) -> Ints:
        """[R] rows that could run."""
        found: Ints = self._carried + ((self._states != _CACHED) & self._wanted()).sum(1)
        return found

    def next_token(self) -> Stepped:
        """A token each."""
        self._rest = self._rest - 1
        ones = np.ones(len(self), np.int64)
        return Stepped(ones, ones, self._rest == 0)

    def whole(self) -> Stepped:
        """A step of whole blocks, or of those that are decided the one that stores them."""
        masked = self._states == _MASKED
        decided = ~masked.any(1)
        accepted, _ = self._accept(masked)
        gained = self._take(accepted)
        ended = self._ended()
        self._open(decided & ~ended)
        return Stepped(np.full(len(self), self._block), gained, ended)

    def chunks(self, size: int) -> Stepped:
        """A step of chunks: pending rows, then masked ones."""
        carried = np.minimum(self._carried, size)
        left = size - carried
        wanted = self._wanted()
        pending = _first((self._states == _PENDING) & wanted, left)
        masked = _first((self._states == _MASKED) & wanted, left - pending.sum(1))
        accepted, passed = self._accept(masked)
        end = self._rest[:, None] > np.arange(self._block)
        told = [p[m & e] for p, m, e in zip(passed, masked, end, strict=True)]
        self._states[pending] = _CACHED
        self._carried = self._carried - carried
        gained = self._take(accepted)
        ended = self._ended()
        decided = ~(self._states == _MASKED).any(1) & ~ended
        self._carried[decided] += (self._states[decided] == _PENDING).sum(1)
        self._open(decided)
        return Stepped(carried + pending.sum(1) + masked.sum(1), gained, ended, told)

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


def _first(which: BoolArray, n: Ints) -> BoolArray:
    """The first n [R] of each row's."""
    found: BoolArray = which & (np.cumsum(which, 1) <= n[:, None])
    return found


class Decoder:
    """Steps of sequences in a mode, each as long as `seconds` says; sizes are chosen by what was seen."""

    def __init__(self, sequences: Sequences, mode: Mode, seconds: Seconds, block: int) -> None:
        self.sequences, self._mode, self._seconds = sequences, mode, seconds
        self._commits = Commits(block)
        self.sizes: list[int] = []  # chosen

    def step(self, n_other: int = 0) -> tuple[Stepped, float]:
        """What a step did, and how long it took, with n_other rows besides."""
        stepped = self._step(n_other)
        return stepped, float(self._seconds(np.array(stepped.rows.sum() + n_other, float)))

    def _step(self, n_other: int) -> Stepped:
        if self._mode == "next":
            return self.sequences.next_token()
        if self._mode == "block":
            return self.sequences.whole()
        rates = self._commits.rates() if self._commits.is_warm else None
        size = self._mode.choose([Demand(self.sequences.uncached().astype(np.int32), rates)], n_other)
        self.sizes.append(size)
        stepped = self.sequences.chunks(size)
        self._commits.observe(stepped.passed)
        return stepped
