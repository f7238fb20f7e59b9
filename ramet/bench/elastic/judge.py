"""How sure an engine's draws are: by a commit curve in place of the model, and with a clock beside it.

Random weights are never sure of anything. So the engine runs whole steps, but how sure each draw is comes from a curve:
whatever is measured so has `simulated commits`. The ids stay what was drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramet.bench.elastic.commit_curves import Curve
from ramet.denoise.running import Chunks, Emitted, RunningReplies
from ramet.tree import BoolArray, FloatArray, IntArray

_MOST_PLACES = 1 << 17  # replies at once, of running or simulated ones
Judge = Callable[[Chunks, FloatArray], FloatArray]  # of a step, and how sure the model was [M] -> how sure it is to be


class JudgedReplies:
    """Running replies that take draws as a judge says."""

    def __init__(self, running: RunningReplies, judge: Judge) -> None:
        self._running, self._judge = running, judge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._running, name)

    def take(self, chunks: Chunks, tokens: IntArray, confidence: FloatArray, entropy: FloatArray) -> Emitted:
        judged = self._judge(chunks, confidence)
        return self._running.take(chunks, tokens, judged, entropy if judged is confidence else 1 - judged)


class CurveJudge:
    """The j-th masked row of a chunk passes as a curve says, runs included: see `Curve`. Draws are sure (1) where they
    pass and not at all (0) elsewhere, of which the leftmost is then taken first."""

    def __init__(self, curve: Curve, block: int, rng: np.random.Generator) -> None:
        self._curve, self._block, self._rng = curve, block, rng
        self._passing = curve.passing(block)
        self._runs = np.zeros(_MOST_PLACES, np.bool_)  # by place: all rows pass to the end of the block
        self._first = np.zeros(_MOST_PLACES, np.int32)  # by place: the first masked position of the step before

    def __call__(self, chunks: Chunks, confidence: FloatArray) -> FloatArray:
        some = chunks.n_reads > 0
        n_reads = chunks.n_reads[some]
        places = chunks.places[some]
        starts = np.cumsum(n_reads) - n_reads
        runs = self._running(places, chunks.positions[chunks.reads[starts]])
        numbers = np.arange(len(chunks.reads)) - np.repeat(starts, n_reads)
        luck = self._rng.random(len(numbers)) < self._passing[np.minimum(numbers, self._block - 1)]
        return (luck | np.repeat(runs, n_reads)).astype(np.float32)

    def _running(self, places: IntArray, first: IntArray) -> BoolArray:
        """Of replies with masked rows, from position `first` on: whether this step is of a run. A run goes on in its
        block alone, and its first masked row moves on; where it does not, the place is another reply's."""
        before = self._first[places]
        goes_on = self._runs[places] & (first > before) & (first // self._block == before // self._block)
        runs: BoolArray = (goes_on & self._curve.lasting) | (self._rng.random(len(places)) < self._curve.runs)
        self._first[places] = first
        self._runs[places] = runs
        return runs


@dataclass(frozen=True, slots=True)
class SeenStep:
    """A step as the engine's loop took it: when its draws were on the host, replies, rows, rows that were read, and
    tokens that became known."""

    at: float
    replies: int
    rows: int
    reads: int
    tokens: int


@dataclass(slots=True)
class StepClock:
    """A judge that notes every step from the one on in which `batch` replies run, and calls `enough` once `n_steps`
    were noted, or `limit_s` has passed and `least` were. It stands still while it judges and notes, which no engine
    does that is not measured; `stands` false: it does not, and goes as requests do that come by the time of day."""

    judge: Judge | None
    batch: int = 0
    n_steps: int = 1 << 60
    limit_s: float = float("inf")
    enough: Callable[[], None] = lambda: None
    n_warm: int = 0
    least: int = 6
    stands: bool = True
    seen: list[SeenStep] = field(default_factory=list)
    _places: set[int] = field(default_factory=set)
    _n_before: int = 0
    _stood_s: float = 0.0

    def __call__(self, chunks: Chunks, confidence: FloatArray) -> FloatArray:
        began = time.perf_counter()
        judged = confidence if self.judge is None else self.judge(chunks, confidence)
        if len(self._places) < self.batch:
            self._places.update(chunks.places.tolist())
        elif self._n_before < self.n_warm:
            self._n_before += 1
        else:
            self._note(chunks, judged, began - self._stood_s)
        if self.stands:
            self._stood_s += time.perf_counter() - began
        return judged

    def _note(self, chunks: Chunks, confidence: FloatArray, now: float) -> None:
        n_tokens = n_known(chunks, confidence)
        self.seen.append(SeenStep(now, len(chunks.places), len(chunks.tokens), len(chunks.reads), n_tokens))
        n = len(self.seen) - 1  # the first is where the clock starts
        if n == self.n_steps or (n >= self.least and now - self.seen[0].at > self.limit_s):
            self.enough()


def n_known(chunks: Chunks, confidence: FloatArray) -> int:
    """Tokens that a step of a threshold makes known: of each reply with masked rows those that are sure, or one."""
    some = chunks.n_reads[chunks.n_reads > 0]
    if not len(some):
        return 0
    sure = np.add.reduceat((confidence > 0.5).astype(np.int64), np.cumsum(some) - some)
    return int(np.maximum(sure, 1).sum())
