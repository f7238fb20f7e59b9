"""Elastic control chooses how large the chunks of a round are. It knows counts and times alone."""

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
Seconds = Callable[[Floats, int], Floats]  # seconds of rounds, by their rows and the keys in pages

MIN_SIZE = 2  # a token is a row twice: masked, and then known
MAX_TIERS = 64
AUTO, BLOCK = "auto", "block"  # the values of a setting that are no numbers


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Sequences with one threshold and strategy. uncached [R]: the positions of each that are not cached and could be
    run. rates: what chunks gain them (None: not known yet; where no demand's are known, the largest chunk is chosen,
    which shows most). keys: the rows in pages that they see, all in all."""

    uncached: IntArray
    rates: Rates | None
    keys: int = 0


class ChunkSizes(Protocol):
    """Chooses the size for a round. It has `n_other` other rows: of prompts, decisions, chunks of fixed sizes."""

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """One size, whatever the load."""

    size: int

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class ChunkTiers:
    """Sizes by the number of sequences: (most sequences, size), ascending; the last size holds for more, too."""

    tiers: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str, block: int, largest: int | None = None) -> ChunkTiers:
        """Parse tiers such as "4:32,32:16,256:8"; the block's size means `largest`, if given. Raises InvalidRequest."""
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
    """Chooses the size that gains the most tokens a second, of `sizes` (None: all from MIN_SIZE to the block), and the
    smaller one of equals. The size in use stays until another gains more, by the share `damping` of its tokens.

    In a round with other rows, their time is no reason for larger chunks: it passes whatever the size is. There a size
    is worth its tokens, less the tokens that rounds without other rows would gain in its time.
    """

    def __init__(self, seconds: Seconds, block: int, sizes: Sequence[int] | None = None, damping: float = 0.0) -> None:
        self._seconds = seconds
        self._damping = damping
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
        """[C] the tokens that a step with each size gains, and its rows. guess: rates for demands without.

        A sequence with fewer rows than a size gains what chunks of those rows gain. If it counted as one that has them
        all, steps with few rows left, which are cheap, would seem worth larger chunks.
        """
        tokens, rows = np.zeros((2, len(self._sizes)))
        for demand in demands:
            run = np.minimum(demand.uncached[:, None], self._sizes)
            tokens += (demand.rates or guess).tokens[run].sum(0)
            rows += run.sum(0)
        return tokens, rows


@dataclass(frozen=True, slots=True)
class Repeating:
    """Gives a sequence that runs with nothing beside it the size `alone`, whatever was measured before, so that its
    tokens are the same each time. `others` chooses in all other rounds."""

    others: ChunkSizes
    alone: int

    def choose(self, demands: Sequence[Demand], n_other: int = 0) -> int:
        is_alone = not n_other and _n_sequences(demands) == 1
        return self.alone if is_alone else self.others.choose(demands, n_other)


def fixed_size(chunk_size: str, block: int, tiers: str | None = None) -> int:
    """The size of chunks of a sequence whose size does not follow the load: the first of the tiers, or the number that
    the setting `chunk_size` gives, or else the block. Raises InvalidRequest."""
    if tiers is not None:
        return ChunkTiers.parse(tiers, block).first
    if chunk_size in (AUTO, BLOCK):
        return block
    if not chunk_size.isdecimal():
        raise InvalidRequest(f"{chunk_size!r} is none of auto, block and a number", field="chunk_size")
    return _check(int(chunk_size), block, "chunk_size")


def _n_sequences(demands: Sequence[Demand]) -> int:
    return sum(len(demand.uncached) for demand in demands)


def _check(size: int, block: int, field: str) -> int:
    if not MIN_SIZE <= size <= block:
        raise InvalidRequest(f"{size} is no size of a chunk: from {MIN_SIZE} to the block's {block}", field=field)
    return size
