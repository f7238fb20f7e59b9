"""Readout: the log-probabilities that a reply's positions report, requested of a pass and read from its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.generation import GenerationRequest, Position
from ramet.tree import FloatArray, IntArray, Read, Reads, Stepped

_Logprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Readout:
    """What each row of a canvas reports: log-probabilities of its `n_best` likeliest ids, and of the listed ids, which
    are the request's `logprob_ids`.

    columns [K]: the listed ids, each once, ascending; places [A]: where in `columns` each listed id is, in the
    request's order. constrained: log-probabilities are over the listed ids alone; else over the whole vocabulary.
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
        """The reads of a canvas' first n_rows rows."""
        if not len(self.columns):
            return []
        return [Read(self.columns, row, normalize=not self.constrained) for row in range(n_rows)]

    @property
    def n_likeliest(self) -> int:
        """How many of a row's likeliest ids a step returns: one at least, and no more than may be drawn."""
        return min(max(1, self.n_best), len(self.columns)) if self.constrained else max(1, self.n_best)

    def positions(self, reads: Reads, stepped: Stepped, n: int) -> tuple[Position, ...]:
        """The positions that the first n rows become."""
        best = _pairs(stepped.best[:n, : self.n_best], stepped.logprobs[:n, : self.n_best])
        return tuple(map(Position, stepped.best[:n, 0].tolist(), best, self._listed(reads, n)))

    def _listed(self, reads: Reads, n: int) -> list[_Logprobs]:
        if not len(self.columns):
            return [()] * n
        logprobs = self._logprobs(reads)[:n, self.places]
        return _pairs(np.broadcast_to(self.columns[self.places], logprobs.shape), logprobs)

    def _logprobs(self, reads: Reads) -> FloatArray:
        """[N, K] of the columns of each row."""
        logits = reads.logits.reshape(-1, len(self.columns))
        logsumexp = reads.logsumexp[: len(logits), None]
        if self.constrained:
            logsumexp = np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return logits - logsumexp


def _pairs(ids: IntArray, logprobs: FloatArray) -> list[_Logprobs]:
    """(id, log-probability) of each entry of ids and logprobs [N, B], row by row."""
    return [tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
