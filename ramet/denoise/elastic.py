"""Elastic control: how large the chunks of a round are. Knows counts and times alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ramet.denoise.commits import Rates
from ramet.errors import InvalidRequest
from ramet.quoting import shown
from ramet.tree import IntArray

Floats = npt.NDArray[np.float64]
Seconds = Callable[[Floats, int], Floats]  # of rounds, by their rows, with so many keys in pages

MIN_SIZE = 2  # a token is a row twice: masked, and then known
MAX_TIERS = 64
AUTO, BLOCK = "auto", "block"  # what a setting says in place of a number


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Sequences of one threshold and strategy: how many positions of each [R] are not cached and could be run, and what
    chunks gain them (None: not known yet; where it is of none, the largest chunk is to show it). keys: rows that they
    see in pages, all in all."""

    uncached: IntArray
    rates: Rates | None
    keys: int = 0


class ChunkSizes(Protocol):
    """Chooses for a round. `n_other` rows are in it besides: prompts, decisions, chunks of a size of their own."""

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """One size, whatever the load."""

    size: int

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class ChunkTiers:
    """Sizes by the number of sequences: (at most so many, size), ascending; the last holds for any more too."""

    tiers: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str, block: int, largest: int | None = None) -> ChunkTiers:
        """Of "4:32,32:16,256:8"; a size of the block is the largest one, where that is another. Raises
        InvalidRequest."""
        if text.count(",") >= MAX_TIERS:
            raise InvalidRequest(f"has more than {MAX_TIERS} sizes", field="chunk_tiers")
        try:
            tiers = tuple((int(most), int(size)) for most, size in (part.split(":") for part in text.split(",")))
        except ValueError as error:
            message = f"{shown(text)} is no list of sequences:size, such as 4:32,32:16,256:8"
            raise InvalidRequest(message, field="chunk_tiers") from error
        mosts = [most for most, _ in tiers]
        if mosts != sorted(set(mosts)) or mosts[0] < 1:
            raise InvalidRequest("numbers of sequences ascend, from 1", field="chunk_tiers")
        for _, size in tiers:
            _check(size, block, "chunk_tiers")
        return cls(tuple((most, largest or block if size == block else size) for most, size in tiers))

    @property
    def first(self) -> int:
        """The size for the fewest sequences."""
        return self.tiers[0][1]

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        n = _n_sequences(demands)
        at = bisect_left(self.tiers, n, key=lambda tier: tier[0])
        return self.tiers[min(at, len(self.tiers) - 1)][1]


class Auto:
    """The size that gains the most tokens a second, of `sizes` (None: all from MIN_SIZE to the block); the smaller one
    of equals. The size in use stays while no other gains `damping` of its tokens more.

    In a round that has other rows, their time is no reason for larger chunks: it passes whatever the size is. There a
    size is worth its tokens, less what its time would gain in rounds without them.
    """

    def __init__(self, seconds: Seconds, block: int, sizes: Sequence[int] | None = None, damping: float = 0.0) -> None:
        self._seconds, self._damping = seconds, damping
        self._sizes = np.arange(MIN_SIZE, block + 1) if sizes is None else np.unique(sizes)
        for size in self._sizes.tolist():
            _check(size, block, "chunk_sizes")
        self._last = -1  # which was chosen

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        known = next((demand.rates for demand in demands if demand.rates is not None), None)
        if known is None:
            return int(self._sizes[-1])
        tokens, rows = self._outlook(demands, known)
        keys = sum(demand.keys for demand in demands)
        seconds = self._seconds(rows, keys)
        rate = float((tokens / seconds).max())
        worth = tokens - rate * (self._seconds(rows + n_other, keys) if n_other else seconds)
        best = int(worth.argmax())
        if self._last < 0 or worth[best] - worth[self._last] > self._damping * tokens[best]:
            self._last = best
        return int(self._sizes[self._last])

    def _outlook(self, demands: Sequence[Demand], guess: Rates) -> tuple[Floats, Floats]:
        """[C] tokens and rows with each of the sizes. guess: for demands of which nothing is known yet.

        A sequence with fewer rows than a size gains what chunks of those rows gain. Were it to count as one that
        has them all, steps with few rows left, which are cheap, would seem worth larger chunks.
        """
        tokens, rows = np.zeros((2, len(self._sizes)))
        for demand in demands:
            run = np.minimum(demand.uncached[:, None], self._sizes)
            tokens += (demand.rates or guess).tokens[run].sum(0)
            rows += run.sum(0)
        return tokens, rows


@dataclass(frozen=True, slots=True)
class Repeating:
    """A sequence with nothing beside it takes steps of one size, `alone`, whatever was measured before; so it comes out
    the same each time. `others` chooses for all others."""

    others: ChunkSizes
    alone: int

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        is_alone = not n_other and _n_sequences(demands) == 1
        return self.alone if is_alone else self.others.choose(demands, n_other)


def fixed_size(told: str, block: int, tiers: str | None = None) -> int:
    """The size of a sequence that is to have one alone and at any load, as settings say: a number that they give, or
    the one for the fewest sequences, or else the block. Raises InvalidRequest."""
    if tiers is not None:
        return ChunkTiers.parse(tiers, block).first
    if told in (AUTO, BLOCK):
        return block
    if not told.isdecimal():
        raise InvalidRequest(f"{told!r} is none of auto, block and a number", field="chunk_size")
    return _check(int(told), block, "chunk_size")


def _n_sequences(demands: Sequence[Demand]) -> int:
    return sum(len(demand.uncached) for demand in demands)


def _check(size: int, block: int, field: str) -> int:
    if not MIN_SIZE <= size <= block:
        raise InvalidRequest(f"{size} is no size of a chunk: from {MIN_SIZE} to the block's {block}", field=field)
    return size
