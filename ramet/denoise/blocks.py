"""Blocks: the part of a reply that is being written, token by token known and then cached.

A position is *masked* until a token is accepted for it, *pending* until a pass ran with that token, and then *cached*:
its keys are in pages, and it is not run again. The first block may begin with the end of the prompt, whose tokens are
pending. Blocks are counted from position 0 of the prompt.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np

from ramet.denoise.chunk import Chunk
from ramet.denoise.noise import Noise
from ramet.generation import Finish
from ramet.tree import BoolArray, FloatArray, IntArray

_MASKED, _PENDING, _CACHED = range(3)

Mode = Literal["chunk", "block"]


class Blocks:
    """The live blocks of one reply: one, or two where rows of a block run beside those of the next.

    The prompt's whole blocks [0, n_prefix) are to be in pages before the first step: their rows see each other as a
    segment's with this block do. A token of `eos` ends the reply and is its last; behind it, or behind `max_tokens`,
    nothing is run any more. With the mode "block" each step runs a block whole and keeps nothing of it, until all of
    it is known and one more keeps it: the way of other engines, and what chunks are compared with.
    """

    def __init__(
        self,
        prompt: IntArray,
        *,
        block: int,
        mask: int,
        max_tokens: int,
        eos: Collection[int] = (),
        mode: Mode = "chunk",
    ) -> None:
        assert block >= 2
        assert max_tokens >= 1
        self.n_prefix = len(prompt) // block * block
        self.n_steps = 0
        self.finish: Finish | None = None
        self._block, self._mask, self._mode = block, mask, mode
        self._eos = np.array(sorted(eos), np.int32)
        self._n_prompt = len(prompt)
        self._end = len(prompt) + max_tokens  # behind the last position that the reply may have
        self._told = len(prompt)  # up to here what was accepted has been returned
        self._start = self.n_prefix  # of the first live block
        self._tokens = np.full(block, mask, np.int32)
        self._states = np.full(block, _MASKED, np.int8)
        self._steps = [0]  # that each live block has taken part in
        tail = prompt[self.n_prefix :]
        self._tokens[: len(tail)], self._states[: len(tail)] = tail, _PENDING

    @property
    def n_context(self) -> int:
        """Rows of the reply's path: the prompt's whole blocks, and what is cached."""
        return self._start + int(np.count_nonzero(self._states == _CACHED))

    @property
    def step(self) -> int:
        """Which step of its block the chunk that was asked for last is, from 0: of the first block with masked rows."""
        return self._steps[-1] if self._is_decided else self._steps[0]

    def n_uncached(self, *, ahead: bool = False) -> int:
        """Rows that the largest chunk would have."""
        return len(self._rows(len(self._states) + self._block, ahead)) + self._n_next(ahead)

    def chunk(self, size: int, *, ahead: bool = False) -> Chunk:
        """The step that is due: the pending rows, then the leftmost masked ones, `size` in all.

        The end of the prompt comes on top, in the first step: it is the prompt's, which is run in one go. With `ahead`,
        which is for the largest chunks, masked rows of the next block fill up what is left.
        """
        assert self.finish is None
        assert 2 <= size <= self._block
        assert not ahead or size == self._block
        if self._n_next(ahead):
            self._open()
        rows = self._rows(size, ahead)
        masked = self._states[rows] == _MASKED
        return Chunk(
            tokens=self._tokens[rows],
            positions=(self._start + rows).astype(np.int32),
            block=self._block,
            n_context=self.n_context,
            n_kept=self._n_kept(masked),
            read=np.flatnonzero(masked).astype(np.int32),
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
        rows = chunk.positions - self._start
        assert (self._states[rows[: chunk.n_kept]] == _PENDING).all()
        self._states[rows[: chunk.n_kept]] = _CACHED
        self._accept(rows[chunk.read][accepted], tokens[accepted])
        self.n_steps += 1
        for number in np.unique(rows // self._block).tolist():
            self._steps[number] += 1
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

    @property
    def _is_decided(self) -> bool:
        """Whether nothing of the first block is masked."""
        return bool((self._states[: self._block] != _MASKED).all())

    def _n_next(self, ahead: bool) -> int:
        """Rows of the block to be opened: the next one, beside what is pending of a block that is decided, or ahead."""
        begin = self._start + self._block
        wanted = self._mode == "chunk" and (ahead or self._is_decided)
        if not wanted or len(self._states) > self._block:
            return 0
        return max(min(self._end - begin, self._block), 0)

    def _rows(self, size: int, ahead: bool) -> IntArray:
        """The rows to be run, counted from the first live block, in the order of a chunk."""
        if self._mode == "block":
            return np.arange(self._block, dtype=np.int32)
        reach = len(self._states) if ahead or self._is_decided else self._block
        states, rows = self._states[:reach], np.arange(min(reach, self._end - self._start))
        rows = rows[states[: len(rows)] != _CACHED]
        order = np.lexsort((rows, states[rows] == _MASKED, rows // self._block))
        of_prompt = np.count_nonzero(self._start + rows < self._n_prompt)
        run: IntArray = rows[order][: size + of_prompt].astype(np.int32)
        return run

    def _n_kept(self, masked: BoolArray) -> int:
        """The pending rows in front of the masked ones; those behind saw masks of an earlier block. Of a block that
        runs whole, all or none."""
        n = int(masked.argmax()) if masked.any() else len(masked)
        return n if self._mode == "chunk" or n == len(masked) else 0

    def _accept(self, rows: IntArray, tokens: IntArray) -> None:
        assert (self._states[rows] == _MASKED).all()
        assert not (tokens == self._mask).any(), "the mask's id was drawn"
        self._tokens[rows], self._states[rows] = tokens, _PENDING
        ends = rows[np.isin(tokens, self._eos)]
        if len(ends):
            self._end = min(self._end, self._start + int(ends.min()) + 1)

    def _tell(self) -> list[int]:
        """What has become known without a gap, and whether that was all."""
        begin = self._told - self._start
        gaps = np.flatnonzero(self._states[begin:] == _MASKED)
        n = int(gaps[0]) if len(gaps) else len(self._states) - begin
        known: list[int] = self._tokens[begin : min(begin + n, self._end - self._start)].tolist()
        self._told += len(known)
        if self._told == self._end:
            self.finish = "stop" if known[-1] in self._eos else "length"
        return known

    def _open(self) -> None:
        self._tokens = np.append(self._tokens, np.full(self._block, self._mask, np.int32))
        self._states = np.append(self._states, np.full(self._block, _MASKED, np.int8))
        self._steps.append(0)

    def _close(self) -> None:
        """Leave a block that is cached behind."""
        if (self._states[: self._block] != _CACHED).any():
            return
        self._start += self._block
        self._tokens, self._states, self._steps = (
            self._tokens[self._block :], self._states[self._block :], self._steps[1:]
        )  # fmt: skip
        if not len(self._states):
            self._open()
