"""Simulated decoding: an engine's own running replies, which gain tokens by a commit curve, in rounds that take what a
latency says. No model runs: every figure from here is of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ramet.bench.elastic.commit_curves import Curve
from ramet.bench.elastic.judge import CurveJudge
from ramet.bench.elastic.report import NEXT, WHOLE
from ramet.denoise.commits import Commits
from ramet.denoise.draws import Draws
from ramet.denoise.elastic import ChunkSizes, Demand
from ramet.denoise.noise import Noise
from ramet.denoise.running import GOES_ON, Beginning
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.host import host_for
from ramet.tree import BoolArray, IntArray

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Seconds = Callable[[Floats, int], Floats]  # of steps: by their rows, and of so many replies
Mode = ChunkSizes | str  # chunks; "block" and "next": whole blocks and a pass that stores each; a token a step

_TEXT, _STOP, _MASK = range(3)  # ids
_FAR = 1 << 30  # behind every reply's end, which _STOP is at
_DRAWS = Draws(0.0, 0, 1.0, Noise(0))


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did, by reply [R]: rows that ran, tokens gained, and whether the reply is complete."""

    rows: IntArray
    gained: IntArray
    ended: BoolArray


class SimulatedReplies:
    """Replies under way [R], in steps of a mode; sizes are chosen by what was seen. `n_groups`, of as many replies
    each, know nothing of one another but what was seen of all. Each reply sees n_context rows in pages."""

    def __init__(
        self, curve: Curve, mode: Mode, block: int, rng: np.random.Generator, n_groups: int = 1, n_context: int = 0
    ) -> None:
        self._mode, self._n_groups, self._n_context = mode, n_groups, n_context
        self._running = host_for(torch.device("cpu")).blocks(block, _MASK, "block" if mode == WHOLE else "chunk")
        self._policy = UnmaskPolicy(block=block, threshold=0.5)
        self._judge = CurveJudge(curve, block, rng)
        self._commits = Commits(block)
        self._places = np.zeros(0, np.int32)
        self._lengths, self._got = np.zeros((2, 0), np.int64)
        self.sizes: list[Ints] = []  # chosen in each step [n_groups]

    def __len__(self) -> int:
        return len(self._places)

    def add(self, lengths: Ints) -> None:
        """Add replies of so many tokens."""
        self._places = np.concatenate((self._places, self._begun(len(lengths))))
        self._lengths = np.concatenate((self._lengths, lengths))
        self._got = np.concatenate((self._got, np.zeros(len(lengths), np.int64)))

    def drop(self, which: BoolArray) -> None:
        self._end(which)
        self._places = self._places[~which]
        self._lengths = self._lengths[~which]
        self._got = self._got[~which]

    def replace(self, which: BoolArray, lengths: Ints) -> None:
        """Put others, of so many tokens, in the places of some."""
        self._end(which)
        self._places[which] = self._begun(len(lengths))
        self._lengths[which] = lengths
        self._got[which] = 0

    def step(self, n_other: int = 0) -> StepOutcome:
        """Run a step, with n_other rows besides."""
        sizes = self._chosen(n_other)
        if self._mode == NEXT or not len(self):
            self._got += 1
            ones = np.ones(len(self), np.int32)
            return StepOutcome(ones, ones, self._got == self._lengths)
        chunks = self._running.chunks(self._places, sizes)
        positions = chunks.positions[chunks.reads]
        is_last = positions == np.repeat(self._lengths, chunks.n_reads) - 1
        sure = self._judge(chunks, np.zeros(len(positions), np.float32))
        taken = self._running.take(chunks, np.where(is_last, _STOP, _TEXT).astype(np.int32), sure, 1 - sure)
        if not isinstance(self._mode, str):
            for passed in taken.passed().values():
                self._commits.observe(passed)
                self._commits.renew()
        return StepOutcome(chunks.n_rows, taken.n_emitted, taken.finish != GOES_ON)

    def _chosen(self, n_other: int) -> IntArray:
        """Of each reply, the largest chunk."""
        if isinstance(self._mode, str):
            return np.full(len(self), self._running.largest, np.int32)
        rates = self._commits.rates() if self._commits.is_warm else None
        groups = np.split(self._running.uncached(self._places)[0], self._n_groups)
        demands = (Demand(group, rates, len(group) * self._n_context) for group in groups)
        sizes = np.array([self._mode.choose([demand], n_other) for demand in demands])
        self.sizes.append(np.minimum(sizes, self._commits.block))
        return np.repeat(sizes, len(groups[0])).astype(np.int32)

    def _begun(self, n: int) -> IntArray:
        none = np.zeros(0, np.int32)
        beginning = Beginning(0, none, none.astype(np.bool_), 0, 0, _FAR, frozenset((_STOP,)), self._policy, _DRAWS)
        return np.array([self._running.add(beginning) for _ in range(n)], np.int32)

    def _end(self, which: BoolArray) -> None:
        for place in self._places[which].tolist():
            self._running.drop(place)
