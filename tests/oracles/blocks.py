"""Blocks of one reply, one position at a time: what RunningBlocks does for many in arrays.

A position is *masked* until a token is accepted for it, *pending* until a pass ran with that token, and then *cached*:
its keys are in pages, and it is not run again. The first block may begin with the end of the prompt, whose tokens are
pending. Blocks are counted from position 0 of the prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramet.denoise.noise import Noise
from ramet.generation import Finish
from ramet.tree import BoolArray, FloatArray, IntArray

Mode = Literal["chunk", "block"]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows to be run, by block.

    tokens, positions [N]: a masked row holds the mask's id. Every row sees the `n_context` rows that the reply's path
    has in pages, and of the chunk the rows whose ``position // block`` is not greater than its own, as a segment's
    rows do. Since blocks ascend, those are the chunk's first ones. The keys of the first n_kept rows go behind the
    path's, in this order: a path's rows are ordered by when they were committed, block by block, and keys carry their
    positions. `read` [M] are the rows that are masked, ascending in position.
    """

    tokens: IntArray
    positions: IntArray
    block: int
    n_context: int
    n_kept: int
    read: IntArray

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.positions) >= max(1, self.n_kept)
        assert not len(self.read) or self.n_kept <= int(self.read[0])


class Blocks:
    """The live blocks of one reply: one, or two where rows of a block run beside those of the next.

    The prompt's whole blocks [0, n_prefix) are to be in pages before the first step: their rows see each other as a
    segment's with this block do. A token of `stop_ids` ends the reply and is its last; chunks have nothing behind it.
    Behind `max_tokens` the block is run to its end. With the mode "block" each step runs a block whole and keeps
    nothing of it, until all of it is known and one more keeps it: the way of other engines, and what chunks are
    compared with.
    """

    def __init__(
        self,
        prompt: IntArray,
        *,
        block: int,
        mask: int,
        max_tokens: int,
        stop_ids: Collection[int] = (),
        mode: Mode = "chunk",
    ) -> None:
        assert block >= 2
        assert max_tokens >= 1
        self.n_prefix = len(prompt) // block * block
        self.n_context = self.n_prefix  # rows of the reply's path: the prompt's whole blocks, and what is cached
        self.n_steps = 0
        self.finish: Finish | None = None
        self._block, self._mask, self._mode, self._stop_ids = block, mask, mode, frozenset(stop_ids)
        self._n_prompt = self._told = len(prompt)  # up to _told, what was accepted has been returned
        self._end = len(prompt) + max_tokens  # behind the last position that the reply may have
        self._until = 1 << 30  # behind a token of stop_ids
        self._start = self.n_prefix  # of the first live block
        self._tokens: list[int] = prompt[self.n_prefix :].tolist()  # of the live blocks
        self._pending = list(range(self.n_prefix, len(prompt)))  # positions, ascending
        self._masked = list[int]()  # positions, ascending
        self._steps = list[int]()  # that each live block has taken part in
        self._open()

    @property
    def step(self) -> int:
        """Which step of its block the chunk that was asked for last is, from 0: of the first block with masked rows."""
        return self._steps[-1] if self._is_decided else self._steps[0]

    def n_uncached(self, *, ahead: bool = False) -> int:
        """Rows that the largest chunk would have, and as many as are still to come of the end of the prompt."""
        if self._mode == "block":
            return self._block
        pending, masked = self._reached(ahead)
        return len(pending) + len(masked) + self._n_next(ahead)

    def n_whole(self) -> int:
        """Rows of a step of whole blocks."""
        if self._mode == "block":
            return self._block
        return len(self._pending) + len(self._masked) + self._n_next(ahead=False)

    def chunk(self, size: int, *, ahead: bool = False) -> Chunk:
        """The step that is due: the pending rows, then the leftmost masked ones, `size` in all.

        The end of the prompt comes on top, in the first step: it is the prompt's, which is run in one go. With `ahead`,
        which is for the largest chunks, masked rows of the next block fill up what is left. A size above the block is
        of whole blocks: all rows, and nothing is kept of a block that is not decided.
        """
        assert self.finish is None
        assert size >= 2
        assert not ahead or size == self._block
        if self._n_next(ahead):
            self._open()
        if self._mode == "block":
            rows, n_kept = self._whole()
        elif size > self._block:
            rows, n_kept = self._all()
        else:
            rows, n_kept = self._rows(size, ahead)
        masked = set(self._masked)
        return Chunk(
            tokens=np.array([self._tokens[at - self._start] for at in rows], np.int32),
            positions=np.array(rows, np.int32),
            block=self._block,
            n_context=self.n_context,
            n_kept=n_kept,
            read=np.array([row for row, at in enumerate(rows) if at in masked], np.int32),
        )

    def uniforms(self, noise: Noise, chunk: Chunk) -> FloatArray:
        """[M] what the rows that are read draw by: numbers of their block, its step and their place in it."""
        positions = chunk.positions[chunk.read]
        found = np.zeros(len(positions), np.float32)
        for number in np.unique(positions // self._block).tolist():
            step = self._steps[number - self._start // self._block]
            of = positions // self._block == number
            found[of] = noise.uniforms(number, step, self._block)[positions[of] % self._block]
        return found

    def take(self, chunk: Chunk, tokens: IntArray, accepted: BoolArray) -> list[int]:
        """A step's outcome: what was drawn for the rows that were read [M], and which of them keep it. Returns the
        reply's tokens that have become known without a gap."""
        assert self.finish is None
        assert len(tokens) == len(accepted) == len(chunk.read)
        positions = chunk.positions.tolist()
        assert positions[: chunk.n_kept] == self._pending[: chunk.n_kept]
        del self._pending[: chunk.n_kept]
        self.n_context += chunk.n_kept
        self._accept(chunk.positions[chunk.read[accepted]].tolist(), tokens[accepted].tolist())
        self.n_steps += 1
        for number in {at // self._block for at in positions}:
            self._steps[number - self._start // self._block] += 1
        known = self._tell()
        if self.finish is None:
            self._close()
        return known

    def counts(self, chunk: Chunk) -> BoolArray:
        """[M] after a step: which of the rows that were read tell how fast replies come: not those behind the reply's
        end, nor those ahead, in the block behind one that is not decided."""
        positions = chunk.positions[chunk.read]
        found: BoolArray = (positions < self._end) & (positions // self._block == positions[:1] // self._block)
        return found

    def rewind(self) -> None:
        """The live blocks' pages are given up: all that is known of them is pending again."""
        masked = set(self._masked)
        until = self._start + len(self._tokens)
        self._pending = [at for at in range(self._start, until) if at not in masked]
        self.n_context = self._start

    @property
    def _is_decided(self) -> bool:
        """Whether nothing of the first block is masked."""
        return not self._masked or self._masked[0] >= self._start + self._block

    def _n_next(self, ahead: bool) -> int:
        """Rows of the block to be opened: the next one, beside what is pending of a block that is decided, or ahead."""
        begin = self._start + self._block
        wanted = self._mode == "chunk" and len(self._steps) == 1 and (ahead or self._is_decided)
        return self._block if wanted and self._end > begin else 0

    def _reached(self, ahead: bool) -> tuple[list[int], list[int]]:
        """Pending and masked positions that may be run: of all live blocks, or of the one that is not decided."""
        until = self._until
        if not (ahead or self._is_decided or len(self._steps) == 1):
            until = min(until, self._start + self._block)
        pending, masked = (bisect_left(each, until) for each in (self._pending, self._masked))
        return self._pending[:pending], self._masked[:masked]

    def _rows(self, size: int, ahead: bool) -> tuple[list[int], int]:
        """Positions in the order of a chunk, and how many of the first are kept: pending ones. Of a block behind one
        that is not decided none are, for they see its masks."""
        pending, masked = self._reached(ahead)
        split = len(pending) if self._is_decided else bisect_left(pending, self._start + self._block)
        behind = bisect_left(masked, self._start + self._block) if split < len(pending) else len(masked)
        rows = pending[:split] + masked[:behind] + pending[split:] + masked[behind:]
        n = size + bisect_left(pending, self._n_prompt)
        return rows[:n], min(split, n)

    def _all(self) -> tuple[list[int], int]:
        """All positions: the first block's known ones, which are kept where all of it is known, and so on."""
        behind = self._start + self._block
        split, masked = bisect_left(self._pending, behind), bisect_left(self._masked, behind)
        first, second = self._pending[:split] + self._masked[:masked], self._pending[split:] + self._masked[masked:]
        return first + second, split if self._is_decided else 0

    def _whole(self) -> tuple[list[int], int]:
        """A block's positions, and that all are kept where all are known."""
        return list(range(self._start, self._start + self._block)), self._block if self._is_decided else 0

    def _accept(self, positions: list[int], tokens: list[int]) -> None:
        assert set(positions) <= set(self._masked)
        assert self._mask not in tokens, "the mask's id was drawn"
        for at, token in zip(positions, tokens, strict=True):
            self._tokens[at - self._start] = token
            self._masked.remove(at)
            if token in self._stop_ids:
                self._end, self._until = min(self._end, at + 1), min(self._until, at + 1)
        self._pending = sorted(self._pending + positions)

    def _tell(self) -> list[int]:
        """What has become known without a gap, and whether that was all."""
        gap = self._masked[0] if self._masked else self._start + len(self._tokens)
        until = min(gap, self._end)
        known = self._tokens[self._told - self._start : until - self._start]
        self._told = until
        if until == self._end:
            self.finish = "stop" if known[-1] in self._stop_ids else "length"
        return known

    def _open(self) -> None:
        """One more live block, masked behind what is known of it."""
        end = self._start + (len(self._steps) + 1) * self._block
        begin = self._start + len(self._tokens)
        self._masked += range(begin, end)
        self._tokens += [self._mask] * (end - begin)
        self._steps.append(0)

    def _close(self) -> None:
        """Leave a block that is cached behind."""
        if not self._is_decided or (self._pending and self._pending[0] < self._start + self._block):
            return
        self._start += self._block
        del self._tokens[: self._block], self._steps[0]
        if not self._steps:
            self._open()
