"""RunningReplies: replies that are being written, many at once, as the steps of all of them see it.

A *place* is a small number, that of a reply while it is live: rows of arrays are a reply's by its place. Positions are
counted from 0 of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from ramet.denoise.commits import Passed
from ramet.denoise.draws import Draws
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.generation import Finish
from ramet.tree import BoolArray, FloatArray, IntArray, Sampling

Mode = Literal["chunk", "block"]
FINISHES: tuple[Finish | None, ...] = (None, "stop", "length")  # by Emitted.finish
GOES_ON, STOP, LENGTH = range(3)


_LEAST = np.finfo(np.float32).tiny  # what a logarithm is taken of


def logprobs_of(confidence: FloatArray) -> FloatArray:
    """Of probabilities, that of 0 being finite too."""
    found: FloatArray = np.log(np.maximum(confidence, _LEAST))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """Where a reply begins to run, or goes on after its pages were given up.

    `start` rows are its path's, in pages: with blocks of masks a whole number of blocks, otherwise all known tokens but
    the last. `tokens` [n] are those from position `start` on, where `known` [n] says so; known ones are to be run. The
    prompt has n_prompt tokens; positions below `emitted` were emitted already, from n_prompt on; `end` is behind the
    last one that the reply may have. A token of `stop_ids` is emitted, and is the last. `logprobs` [n] are of the known
    ones that were drawn; `steps` those that each live block has taken part in.
    """

    start: int
    tokens: IntArray
    known: BoolArray
    n_prompt: int
    emitted: int
    end: int
    stop_ids: frozenset[int]
    unmasking: UnmaskPolicy
    draws: Draws
    logprobs: FloatArray | None = None
    steps: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.known)
        assert self.n_prompt <= self.emitted < self.end
        assert self.start <= self.emitted


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """A step of N live replies: rows to be run, reply by reply.

    Of each reply [N]: n_rows, of which the keys of the first n_kept go behind its path's, in this order; n_segments, 1
    or 2, rows of one block each, whose `lengths` [S] are; n_reads. Of the T rows: `tokens` (the mask's id where
    masked) and `positions`, which ascend within neither reply nor segment. `reads` [M] are the rows, of the T,
    ascending, for which a token is to be drawn as `sampling` [M] says.
    """

    places: IntArray
    n_rows: IntArray
    n_kept: IntArray
    n_segments: IntArray
    n_reads: IntArray
    lengths: IntArray
    tokens: IntArray
    positions: IntArray
    reads: IntArray
    sampling: Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """What a step made known: of each of N replies the next n_emitted [N] tokens, flat in `tokens` with `logprobs`;
    `finish` [N] int8 (GOES_ON, STOP, LENGTH). `passed`: what Commits.observe takes, of each unmasking."""

    n_emitted: IntArray
    tokens: IntArray
    logprobs: FloatArray
    finish: np.ndarray[tuple[int], np.dtype[np.int8]]
    passed: Callable[[], Mapping[UnmaskPolicy, Passed]] = dict


class RunningReplies(Protocol):
    """Live replies by their places. `least`: rows that a reply's step has where there are as many; `largest`: the size
    of its largest steps. `exact`: whether pages hold what a pass over all tokens would have left there. `groups`: the
    unmaskings in use, by number."""

    least: int
    largest: int
    exact: bool

    @property
    def groups(self) -> list[UnmaskPolicy]: ...

    def add(self, beginning: Beginning) -> int:
        """The reply's place, which is another's once it is dropped."""
        ...

    def drop(self, place: int) -> None: ...

    def beginning(self, place: int) -> Beginning:
        """From which the reply could go on were its pages given up."""
        ...

    def group(self, places: IntArray) -> IntArray:
        """[N] which of the groups they are of."""
        ...

    def uncached(self, places: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """[N] rows that its largest chunk would have; [N] of these, those that come on top of a chunk's size; and [N]
        rows of a step of whole blocks."""
        ...

    def chunks(self, places: IntArray, sizes: IntArray) -> Chunks:
        """The step that is due, of places [N] that differ; of `sizes` [N] rows at most, from `least` on. Nothing has
        happened before `take`: it may be asked again, for others and other sizes."""
        ...

    def take(self, chunks: Chunks, tokens: IntArray, confidence: FloatArray, entropy: FloatArray) -> Emitted:
        """The outcome of the step asked for last: for its reads [M] what was drawn, how likely that is, and the entropy
        in nats, both of the distribution at temperature 1. A reply that ended is to be dropped."""
        ...
