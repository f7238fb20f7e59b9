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
    order. constrained: the likeliest are among them, and log-probabilities are over them alone; else they are over
    the whole vocabulary, and a step tells the likeliest.
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

    def stepped(self, reads: Reads) -> Stepped:
        """What a step returned, with the likeliest ids of each row. Where it was constrained there was none: nothing
        follows, so that nothing is drawn, and the entropies are those at temperature 1."""
        if not self.constrained:
            return reads.stepped[0]
        logprobs = self._logprobs(reads)
        entropy = -(np.exp(logprobs) * logprobs).sum(1)
        order = np.argsort(-logprobs, axis=1, kind="stable")[:, : max(1, self.n_best)]  # stable: of equal ids the lower
        best = self.columns[order]
        return Stepped(best[:, 0], best, np.take_along_axis(logprobs, order, 1), entropy)

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
