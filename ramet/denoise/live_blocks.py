"""LiveBlocks: which rows of each running reply are masked or pending, and with which tokens.

A position is *masked* until a token is accepted for it, *pending* until a pass ran with that token, and then *cached*:
its keys are in pages, and it is not run again. A reply has one live block, or two where rows of a block run beside
those of the next. Its first block may begin with the end of the prompt, whose tokens are pending.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ramet.denoise.ragged import before, ranges
from ramet.denoise.reply_table import grown
from ramet.denoise.running import Beginning, Chunks, logprobs_of
from ramet.tree import BoolArray, FloatArray, IntArray

Ints = npt.NDArray[np.int64]

PENDING, MASKED = range(2)
_FAR = np.iinfo(np.int32).max
_ARRAYS = ("rows", "tokens", "logprobs", "start", "until", "n_open", "steps")


class LiveBlocks:
    """The live blocks of replies by their places, in arrays: of `size` positions each, masked ones holding `mask`.

    rows [P, 2, 2, B]: which rows may run, by block, PENDING or MASKED, and place in the block: the order of a chunk.
    tokens, logprobs [P, 2B]: of both blocks. start [P]: the position of the first block. until [P]: behind the first
    token that ends the reply; far away where there is none. n_open [P]: live blocks, 1 or 2. steps [P, 2]: how many
    steps each live block has taken part in.
    """

    def __init__(self, size: int, mask: int) -> None:
        self.size = size
        self.mask = mask
        self.rows = np.zeros((0, 2, 2, size), np.bool_)
        self.tokens = np.zeros((0, 2 * size), np.int32)
        self.logprobs = np.zeros((0, 2 * size), np.float32)
        self.start = np.zeros(0, np.int32)
        self.until = np.zeros(0, np.int32)
        self.n_open = np.zeros(0, np.int32)
        self.steps = np.zeros((0, 2), np.int32)
        # What the flat cells of `rows` of a reply are: [4B] where in its two blocks, and whether for a masked row.
        self.offsets = np.arange(2 * size).reshape(2, 1, size).repeat(2, 1).ravel()
        self.is_masked = (np.zeros((2, 2, size), np.bool_) | (np.arange(2) == MASKED)[:, None]).ravel()

    def grow(self, n_places: int) -> None:
        more = n_places - len(self.start)
        for name in _ARRAYS if more else ():
            setattr(self, name, grown(getattr(self, name), more))

    def put(self, place: int, beginning: Beginning) -> None:
        """Begin at `place`: known rows are pending, all others masked."""
        size, n = self.size, len(beginning.tokens)
        known = np.zeros(2 * size, np.bool_)
        known[:n] = beginning.known
        self.start[place] = beginning.start
        self.steps[place] = beginning.steps
        self.n_open[place] = 2 if n > size else 1
        self.tokens[place] = self.mask
        self.tokens[place, known] = beginning.tokens[beginning.known]
        if beginning.logprobs is not None:
            self.logprobs[place, :n] = beginning.logprobs
        written = beginning.known & (np.arange(n) >= beginning.n_prompt - beginning.start)
        ends = np.flatnonzero(written & np.isin(beginning.tokens, list(beginning.stop_ids)))  # also behind max_tokens
        self.until[place] = beginning.start + ends[0] + 1 if len(ends) else _FAR
        runs = np.arange(2 * size) < self.n_open[place] * size
        self.rows[place, :, PENDING] = (known & runs).reshape(2, size)
        self.rows[place, :, MASKED] = (~known & runs).reshape(2, size)

    def are_decided(self, places: IntArray) -> BoolArray:
        """[N] whether nothing of the first block is masked."""
        found: BoolArray = np.logical_not(self.rows[places, 0, MASKED].any(1))
        return found

    def step(self, places: IntArray) -> IntArray:
        """[N] which step of its block is due, from 0: of the first block with masked rows."""
        return self.steps[places, np.where(self.are_decided(places), self.n_open[places] - 1, 0)]

    def before_end(self, places: IntArray) -> BoolArray:
        """[N, 2, 2, B] which cells of `rows` are not behind a token that ends the reply."""
        found: BoolArray = self.offsets < (self.until[places] - self.start[places])[:, None]
        return found.reshape(-1, 2, 2, self.size)

    def gap(self, places: IntArray) -> Ints:
        """[N] where in its live blocks the first masked row is."""
        masked = self.rows[places, :, MASKED].reshape(len(places), -1)
        first = masked.argmax(1)
        found: Ints = np.where(masked[np.arange(len(places)), first], first, self.n_open[places] * self.size)
        return found

    def keep(self, chunks: Chunks) -> None:
        """The pending rows that a step kept are cached now."""
        rows = ranges(before(chunks.n_rows), chunks.n_kept)
        of = np.repeat(chunks.places, chunks.n_kept)
        cells = self._cells(of, chunks.positions[rows] - self.start[of])
        assert self.rows.ravel()[cells].all()
        self.rows.reshape(-1)[cells] = False

    def accept(self, places: IntArray, offsets: IntArray, tokens: IntArray, confidence: FloatArray) -> None:
        """Make masked rows, by their places and where in their live blocks they are, pending with these tokens."""
        assert (tokens != self.mask).all(), "the mask's id was drawn"
        rows = self.rows.reshape(-1)
        pending = self._cells(places, offsets)
        masked = pending + self.size
        assert rows[masked].all()
        rows[masked] = False
        rows[pending] = True
        at = places * (2 * self.size) + offsets
        self.tokens.reshape(-1)[at] = tokens
        self.logprobs.reshape(-1)[at] = logprobs_of(confidence)

    def count(self, chunks: Chunks) -> None:
        """Count a step for each block that took part in it."""
        first = chunks.positions[before(chunks.n_rows)] - self.start[chunks.places]
        self.steps[chunks.places, first // self.size] += 1
        self.steps[chunks.places[chunks.n_segments == 2], 1] += 1

    def close(self, decided: IntArray) -> None:
        """Of these places, whose first block is decided: go on behind it where all of it is cached."""
        size = self.size
        places = decided[~self.rows[decided, 0, PENDING].any(1)]
        self.start[places] += size
        two = places[self.n_open[places] == 2]
        for each in (self.tokens, self.logprobs):
            each[two, :size] = each[two, size:]
        self.rows[two, 0], self.rows[two, 1] = self.rows[two, 1], False
        self.steps[two, 0] = self.steps[two, 1]
        self.n_open[two] = 1
        self.open(places[~np.isin(places, two)], 0)

    def open(self, places: IntArray, at: int) -> None:
        """Make the first (at 0) or the second live block (at 1) new, all masked."""
        self.rows[places, at, PENDING] = False
        self.rows[places, at, MASKED] = True
        self.tokens[places, at * self.size : (at + 1) * self.size] = self.mask
        self.steps[places, at] = 0
        self.n_open[places] = at + 1

    def _cells(self, places: IntArray, offsets: IntArray) -> Ints:
        """Flat in `rows`, the cells of pending rows; those of masked ones are a block further on."""
        cells: Ints = places.astype(np.int64) * (4 * self.size) + offsets + (offsets >= self.size) * self.size
        return cells
