"""Commit curves: how often the masked rows of a chunk are sure, in place of a trained model. Whatever is measured with
them is simulated.

They are fitted to what a published table says of SDAR-8B with blocks of 32 and a threshold of 0.9: mean and standard
deviation of the tokens that a step commits, on seven data sets. The j-th masked row passes with a probability that
falls off geometrically in j; and some steps are runs, in which every row passes: the deviations, about twice the
means, say that there are such, and they cannot be had from rows that pass independently. Steps that only store keys
count as none: the table is of tokens decoded in a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ramet.denoise.commits import counted

Floats = npt.NDArray[np.float64]

_DECAY = 0.85  # of a row's probability, from one masked row to the next
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Dataset:
    """Means and standard deviations: tokens of prompts and of replies, tokens that a step commits."""

    name: str
    prompt: tuple[float, float]
    reply: tuple[float, float]
    step: tuple[float, float]

    def curve(self) -> Curve:
        return fitted(*self.step)


DATASETS = (
    Dataset("ShareGPT", (213, 508), (321, 214), (5.29, 9.44)),
    Dataset("LMSYS-Chat", (89, 133), (183, 163), (4.81, 8.80)),
    Dataset("LongBench", (4015, 2057), (116, 138), (6.06, 10.74)),
    Dataset("GSM8K", (89, 22), (175, 67), (3.20, 5.68)),
    Dataset("HumanEval", (172, 65), (103, 62), (3.75, 5.96)),
    Dataset("MBPP", (155, 77), (49, 28), (1.96, 3.33)),
    Dataset("IFEval", (58, 24), (281, 264), (1.88, 3.90)),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """The j-th masked row, from 0, passes with probability first * decay ** j. With probability `runs` a step begins
    a run, in which all pass: one that is `lasting` goes on to the block's end, for what is sure stays sure, in
    however many chunks it is taken. Of whole blocks both kinds are the same."""

    first: float
    runs: float
    decay: float = _DECAY
    lasting: bool = True

    def passing(self, block: int = _BLOCK) -> Floats:
        """[block] of steps that are no runs."""
        return np.array([self.first * self.decay**j for j in range(block)])

    def step(self, block: int = _BLOCK) -> tuple[float, float]:
        """Mean and standard deviation of what a step commits, of the steps that take whole blocks to their end."""
        counts = (1 - self.runs) * counted(np.tile(self.passing(block), (3, 1)))
        counts[np.arange(block + 1), np.arange(block + 1)] += self.runs
        counts_squared = counts @ np.arange(block + 1) ** 2.0
        reached = np.zeros(block + 1)  # how often a step begins with so many masked rows
        reached[block] = 1.0
        for left in range(block, 0, -1):
            reached[:left] += reached[left] * counts[left, left:0:-1]
        n_steps = float(reached[1:].sum())
        mean, squares = block / n_steps, float(reached[1:] @ counts_squared[1:]) / n_steps
        return mean, max(squares - mean**2, 0.0) ** 0.5


@cache
def fitted(mean: float, deviation: float | None = None, block: int = _BLOCK) -> Curve:
    """The curve of which a step of whole blocks commits that much. Without a deviation it has no runs; the nearest,
    where none reaches it."""
    if deviation is None:
        return _of_mean(mean, 0.0, block)
    low, high = 0.0, 1.0
    for _ in range(18):
        runs = (low + high) / 2
        curve = _of_mean(mean, runs, block)
        if curve.step(block)[1] < deviation and curve.first > 0:
            low = runs
        else:
            high = runs
    return _of_mean(mean, low, block)


def _of_mean(mean: float, runs: float, block: int) -> Curve:
    low, high = 0.0, 1.0
    for _ in range(18):
        first = (low + high) / 2
        low, high = (first, high) if Curve(first, runs).step(block)[0] < mean else (low, first)
    return Curve(low, runs)
