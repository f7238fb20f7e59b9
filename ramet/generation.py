"""What is asked of a model that writes, in token ids, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt [P] of ids, its template included, and how its reply is denoised.

    max_tokens: None takes the model's own. seed: None draws one from the prompt, so that a request repeats.

    A structured read says what its one canvas begins from: `seed_canvas` [canvas_length] instead of noise, of which
    `pinned` are the places that stay; `read_only`: its likeliest ids are the reply, whatever ends a reply among
    them. `max_steps`: no more than the model's own. `constrained`: `logprob_ids` are all that may be drawn, and
    log-probabilities are over them alone.

    Told at every position of the reply: the log-probabilities of `logprob_ids`, and of the `n_best` likeliest.
    """

    prompt: tuple[int, ...]
    max_tokens: int | None = None
    seed: int | None = None
    ignore_eos: bool = False
    canvas_length: int | None = None
    seed_canvas: tuple[int, ...] | None = None
    pinned: tuple[int, ...] = ()
    max_steps: int | None = None
    read_only: bool = False
    constrained: bool = False
    logprob_ids: tuple[int, ...] = ()
    n_best: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """An id of a reply; (id, log-probability at temperature 1) of the likeliest there, descending, and of those asked
    for, in their order."""

    token: int
    best: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one finished canvas adds to a reply, after how many steps. `finish`: None where more follows. n_cached of
    the prompt's tokens were not computed again: told by the engine."""

    positions: tuple[Position, ...]
    n_steps: int
    finish: Finish | None = None
    n_cached: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole reply: its positions, and what it took. n_cached of the n_prompt tokens were not computed again."""

    positions: tuple[Position, ...]
    finish: Finish
    n_prompt: int
    n_cached: int
    n_steps: int
    n_canvases: int

    @classmethod
    def of(cls, pieces: Sequence[Piece], *, n_prompt: int, n_cached: int) -> Generation:
        """From all of its pieces, of which the last says how it ended."""
        finish = pieces[-1].finish
        assert finish is not None
        positions = tuple(position for piece in pieces for position in piece.positions)
        return cls(positions, finish, n_prompt, n_cached, sum(piece.n_steps for piece in pieces), len(pieces))

    @property
    def tokens(self) -> list[int]:
        return [position.token for position in self.positions]
