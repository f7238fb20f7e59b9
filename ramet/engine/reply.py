"""Reply: a text on its way, from its prompt to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ramet.denoise.running import FINISHES, Beginning
from ramet.errors import EngineFault
from ramet.generation import Finish, Piece, Position
from ramet.tree import IntArray


@dataclass(slots=True, eq=False)
class Reply:
    """One reply of an engine. Made by a writer; the engine's thread writes everything else.

    Its job waits until rows are free; the rows before its `beginning` go into pages; then it runs, at a `place`. When
    pages run out it waits again, with what is known of it; one that `repeats`, bit for bit, is written again from its
    prompt. `future` gives how many of the prompt's tokens were not computed again, or the error. `on_piece` gets what
    has become known, step by step and once; `tokens` and `logprobs` have all of it.
    """

    prompt: IntArray
    beginning: Beginning
    future: Future[int] = field(default_factory=Future)
    on_piece: Callable[[Piece], None] | None = None
    salt: str = ""
    chunk_size: int | None = None  # None: as the load has it
    repeats: bool = False
    place: int = -1
    n_cached: int | None = None  # None: never begun
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    n_steps: int = 0
    n_rows: int = 0
    fault: EngineFault | None = None  # what `future` is to give at the end
    _emitted: tuple[int, int] = (0, 0)  # steps and rows up to the last piece
    _n_again: int = 0  # of the tokens those that are still to come a second time

    def known(self, n: int) -> IntArray:
        """The first n ids of the prompt and the reply."""
        if n <= len(self.prompt):
            return self.prompt[:n]
        rest = np.array(self.tokens[: n - len(self.prompt)], np.int32)
        return np.concatenate([self.prompt, rest])

    def take(self, tokens: list[int], logprobs: list[float], finish: int) -> None:
        """What a step made known."""
        if self._n_again:
            tokens, logprobs = self._new(tokens, logprobs)
        self.tokens += tokens
        self.logprobs += logprobs
        self.finish = FINISHES[finish]
        if self.on_piece is not None and self.fault is None and (tokens or finish):
            n_steps, n_rows = self.n_steps - self._emitted[0], self.n_rows - self._emitted[1]
            self._emitted = self.n_steps, self.n_rows
            emitted, n_cached = positions(tokens, logprobs), self.n_cached or 0
            self.on_piece(Piece(emitted, n_steps, self.finish, n_cached, n_rows, 0, self.chunk_size))

    def again(self) -> None:
        """It is written once more from its beginning."""
        self._n_again = len(self.tokens)

    def _new(self, tokens: list[int], logprobs: list[float]) -> tuple[list[int], list[float]]:
        """Those that were not emitted before."""
        begin, n = len(self.tokens) - self._n_again, min(self._n_again, len(tokens))
        if tokens[:n] != self.tokens[begin : begin + n]:
            self.fault = EngineFault(
                "its pages were given up, and written again it came out otherwise, by rounding: a larger cache_bytes "
                "holds more replies, and with batch_invariant they come out the same"
            )
        self._n_again -= n
        return tokens[n:], logprobs[n:]


def positions(tokens: Sequence[int], logprobs: Sequence[float]) -> tuple[Position, ...]:
    """Each id with its log-probability."""
    return tuple(Position(token, ((token, p),)) for token, p in zip(tokens, logprobs, strict=True))
