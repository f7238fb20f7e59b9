"""Judges of what replies draw: by a commit curve in place of the model, and with a clock beside it.

Random weights are never sure of anything. So the engine runs whole steps, but how sure each draw is comes from a curve:
whatever is measured so has `simulated commits`. The ids stay what was drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ramet.bench.commit_curves import Curve
from ramet.denoise.running import Chunks
from ramet.engine.replies import Told
from ramet.tree import BoolArray, IntArray


class Judge(Protocol):
    """Of a step of live replies, what was drawn [M], as the replies are to take it."""

    def __call__(self, chunks: Chunks, drawn: Told) -> Told: ...


class CurveJudge:
    """The j-th masked row of a chunk passes as a curve says, runs included: see `Curve`. The same as
    `simulated.Sequences`, for chunks of an engine."""

    def __init__(self, curve: Curve, block: int, rng: np.random.Generator) -> None:
        self._curve, self._block, self._rng = curve, block, rng
        self._passing = curve.passing(block)
        self._runs = np.zeros(0, np.bool_)  # by place: all rows pass to the end of the block
        self._first = np.zeros(0, np.int32)  # by place: the first masked position of the step before

    def __call__(self, chunks: Chunks, drawn: Told) -> Told:
        """Sure (1) of rows that pass and not at all (0) of others, of which the leftmost is then taken first."""
        passed = self._passed(chunks).astype(np.float32)
        return replace(drawn, confidence=passed, entropy=1 - passed)

    def _passed(self, chunks: Chunks) -> BoolArray:
        """[M]"""
        some = chunks.n_reads > 0
        n_reads, places = chunks.n_reads[some], chunks.places[some]
        starts = np.cumsum(n_reads) - n_reads
        first = chunks.positions[chunks.reads[starts]]
        runs = self._running(places, first)
        numbers = np.arange(len(chunks.reads)) - np.repeat(starts, n_reads)
        luck = self._rng.random(len(numbers)) < self._passing[np.minimum(numbers, self._block - 1)]
        passed: BoolArray = luck | np.repeat(runs, n_reads)
        return passed

    def _running(self, places: IntArray, first: IntArray) -> BoolArray:
        """Of replies with masked rows, from position `first` on: whether this step is of a run. A run goes on in its
        block alone, and its first masked row moves on; where it does not, the place is another reply's."""
        self._reserve(int(places.max(initial=-1)) + 1)
        before = self._first[places]
        goes_on = self._runs[places] & (first > before) & (first // self._block == before // self._block)
        runs: BoolArray = (goes_on & self._curve.lasting) | (self._rng.random(len(places)) < self._curve.runs)
        self._first[places], self._runs[places] = first, runs
        return runs

    def _reserve(self, n: int) -> None:
        if n > len(self._runs):
            more = max(n, 2 * len(self._runs)) - len(self._runs)
            self._runs = np.concatenate((self._runs, np.zeros(more, np.bool_)))
            self._first = np.concatenate((self._first, np.zeros(more, np.int32)))


@dataclass(frozen=True, slots=True)
class Seen:
    """A step as the engine's loop took it: when its draws were on the host, replies, rows, rows that were read, and
    tokens that became known."""

    at: float
    replies: int
    rows: int
    reads: int
    tokens: int


@dataclass(slots=True)
class Clock:
    """A judge that notes every step from the one on in which `batch` replies are live, and calls `enough` once
    `n_steps` were noted, or `limit_s` has passed and `least` were. It stands still while it judges and notes, which no
    engine does that is not measured; `stands` false: it does not, and goes as requests do that come by the time of
    day."""

    judge: Judge | None
    batch: int
    n_steps: int
    limit_s: float
    enough: Callable[[], None]
    n_warm: int = 0
    least: int = 6
    stands: bool = True
    seen: list[Seen] = field(default_factory=list)
    _places: set[int] = field(default_factory=set)
    _n_before: int = 0
    _stood_s: float = 0.0

    def __call__(self, chunks: Chunks, drawn: Told) -> Told:
        began = time.perf_counter()
        drawn = self._judged(chunks, drawn, began - self._stood_s)
        if self.stands:
            self._stood_s += time.perf_counter() - began
        return drawn

    def _judged(self, chunks: Chunks, drawn: Told, now: float) -> Told:
        if self.judge is not None:
            drawn = self.judge(chunks, drawn)
        if len(self._places) < self.batch:
            self._places.update(chunks.places.tolist())
        elif self._n_before < self.n_warm:
            self._n_before += 1
        else:
            self._note(chunks, drawn, now)
        return drawn

    def _note(self, chunks: Chunks, drawn: Told, now: float) -> None:
        self.seen.append(Seen(now, len(chunks.places), len(chunks.tokens), len(chunks.reads), n_known(chunks, drawn)))
        n = len(self.seen) - 1  # the first is where the clock starts
        if n == self.n_steps or (n >= self.least and now - self.seen[0].at > self.limit_s):
            self.enough()


def n_known(chunks: Chunks, drawn: Told) -> int:
    """Tokens that a step of a threshold makes known: of each reply with masked rows those that are sure, or one."""
    some = chunks.n_reads[chunks.n_reads > 0]
    if not len(some):
        return 0
    sure = np.add.reduceat((drawn.confidence > 0.5).astype(np.int64), np.cumsum(some) - some)
    return int(np.maximum(sure, 1).sum())
