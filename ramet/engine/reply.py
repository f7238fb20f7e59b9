"""Reply: a text on its way, from its prompt to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ramet.cache.pages import Path
from ramet.denoise.live import FINISHES, Beginning
from ramet.generation import Finish, Piece, Position
from ramet.tree import IntArray


@dataclass(slots=True, eq=False)
class Reply:
    """One reply of an engine. Made by a writer; the engine's thread writes everything else.

    It waits until rows are free; the rows before its `beginning` go into the pages of its `path`; then it is live, at a
    `place`. When pages run out it waits again, with what is known of it. `future` gives how many of the prompt's
    tokens were not computed again, or the error. `on_piece` gets what has become known, step by step; `tokens` and
    `logprobs` have all of it. A reply that is to run `alone` shares no round.
    """

    prompt: IntArray
    beginning: Beginning
    future: Future[int] = field(default_factory=Future)
    on_piece: Callable[[Piece], None] | None = None
    salt: str = ""
    chunk_size: int | None = None  # None: the engine's
    keys: Sequence[bytes] = ()  # of the pages before its beginning
    path: Path = field(default_factory=Path)
    place: int = -1
    n_cached: int | None = None  # None: never begun
    alone: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    n_steps: int = 0
    n_rows: int = 0
    queued_at: float = field(default_factory=time.perf_counter)
    _told: tuple[int, int] = (0, 0)  # steps and rows up to the last piece

    def known(self, n: int) -> IntArray:
        """The first n ids of the prompt and the reply."""
        if n <= len(self.prompt):
            return self.prompt[:n]
        rest = np.array(self.tokens[: n - len(self.prompt)], np.int32)
        return np.concatenate([self.prompt, rest])

    def take(self, tokens: list[int], logprobs: list[float], finish: int) -> None:
        """What a step made known."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.finish = FINISHES[finish]
        if self.on_piece is not None and (tokens or finish):
            n_steps, n_rows = self.n_steps - self._told[0], self.n_rows - self._told[1]
            self._told = self.n_steps, self.n_rows
            self.on_piece(Piece(positions(tokens, logprobs), n_steps, self.finish, self.n_cached or 0, n_rows, 0))


def positions(tokens: Sequence[int], logprobs: Sequence[float]) -> tuple[Position, ...]:
    """Each id with its log-probability."""
    return tuple(Position(token, ((token, p),)) for token, p in zip(tokens, logprobs, strict=True))
