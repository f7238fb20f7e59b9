"""Readout: what a reply's positions are told with, asked of a pass and found in its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.generation import GenerationRequest, Position
from ramet.tree import FloatArray, IntArray, Read, Reads, Stepped

_Told = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Readout:
    """Of each row of a canvas: its likeliest ids, `n_best` of them told with their log-probabilities, and those of the
    ids asked for.

    columns [K]: the ids asked for, each once, ascending; places [A]: where among them those asked for are, in their
    order. constrained: log-probabilities are over them alone; else over the whole vocabulary.
    """

    columns: IntArray
    places: npt.NDArray[np.intp]
    n_best: int
    constrained: bool

    @classmethod
    def of(cls, request: GenerationRequest) -> Readout:
        columns, places = np.unique(np.array(request.logprob_ids, np.int32), return_inverse=True)
        return cls(columns, places, request.n_best, request.constrained)

    def reads(self, n_rows: int) -> list[Read]:
        """Of a canvas' first rows."""
        if not len(self.columns):
            return []
        return [Read(self.columns, row, normalize=not self.constrained) for row in range(n_rows)]

    @property
    def n_likeliest(self) -> int:
        """How many of a row's likeliest ids are found: one at least, and no more than may be drawn."""
        return min(max(1, self.n_best), len(self.columns)) if self.constrained else max(1, self.n_best)

    def positions(self, reads: Reads, stepped: Stepped, n: int) -> tuple[Position, ...]:
        """The first n rows."""
        best = _pairs(stepped.best[:n, : self.n_best], stepped.logprobs[:n, : self.n_best])
        return tuple(map(Position, stepped.best[:n, 0].tolist(), best, self._asked(reads, n)))

    def _asked(self, reads: Reads, n: int) -> list[_Told]:
        if not len(self.columns):
            return [()] * n
        logprobs = self._logprobs(reads)[:n, self.places]
        return _pairs(np.broadcast_to(self.columns[self.places], logprobs.shape), logprobs)

    def _logprobs(self, reads: Reads) -> FloatArray:
        """[N, K]"""
        logits = reads.logits.reshape(-1, len(self.columns))
        logsumexp = reads.logsumexp[: len(logits), None]
        if self.constrained:
            logsumexp = np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return logits - logsumexp


def _pairs(ids: IntArray, logprobs: FloatArray) -> list[_Told]:
    """[N, B] of both, by row."""
    return [tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
