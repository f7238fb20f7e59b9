"""GenerationRequest and Generation: a request for text, in token ids, and its reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.errors import InvalidRequest
from ramet.quoting import shown

Finish = Literal["stop", "length"]
# How a model writes: canvases of noise that are denoised, blocks of masks that are filled in, or token by token.
Kind = Literal["canvas", "masks", "next"]
# Fields of a GenerationRequest that canvases alone have, and those that masks alone have.
OF_CANVASES = ("canvas_length", "seed_canvas", "pinned", "max_steps", "read_only", "constrained")
OF_MASKS = ("confidence_threshold", "unmasking_strategy", "denoising_steps", "entropy_bound", "chunk_size")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt [P] of ids, its template included, and how its reply is written.

    `max_tokens` limits the reply; None: the model's own limit. `seed`: None derives one from the prompt, so that the
    same request draws the same numbers. `ignore_eos`: an id that ends a text does not end the reply. `cache_salt`: only
    requests with the same salt find each other's tokens in the cache.

    Drawing: `temperature` divides the logits (0: the likeliest id; None: the model's own; models with canvases, which
    have a schedule, take 0 or 1 alone). The distribution is cut to the `top_k` likeliest ids (0: all), then to the
    likeliest that together have the probability `top_p` (1: all).

    Models that fill in masks; None takes the server's own: `unmasking_strategy` decides which drawn tokens a step
    keeps, such as those above `confidence_threshold`, a probability from 0 to 1, or the surest up to `entropy_bound`
    nats together. `denoising_steps`: steps of a block. `chunk_size`: rows of a chunk at most. With a seed the size of
    chunks does not follow the load, so that the reply repeats whatever runs beside it.

    Models with canvases: `canvas_length` is the rows of a canvas, and `max_steps` its steps, no more than the model's
    own. A structured read begins its one canvas from `seed_canvas` [canvas_length] instead of noise; the places
    `pinned` keep their ids. `read_only`: the likeliest ids of the whole canvas are the reply, also behind one that ends
    a text. `constrained`: only `logprob_ids` may be drawn, and log-probabilities are over them alone.

    Every position of the reply reports the log-probabilities of `logprob_ids`, and of the `n_best` likeliest ids, in
    nats at temperature 1. Models without canvases report that of the drawn id alone, with an n_best of 1.
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
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    confidence_threshold: float | None = None
    unmasking_strategy: str | None = None
    denoising_steps: int | None = None
    entropy_bound: float | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidRequest for values of another type."""
        if self.max_tokens is not None and not isinstance(self.max_tokens, int):
            raise InvalidRequest(f"is a whole number, not {shown(self.max_tokens)}", field="max_tokens")
        if not isinstance(self.cache_salt, str):
            raise InvalidRequest(f"is text, not {shown(self.cache_salt)}", field="cache_salt")


@dataclass(frozen=True, slots=True)
class Position:
    """An id of a reply, with log-probabilities in nats at temperature 1. `best` has (id, log-probability) of the
    likeliest ids there, descending, or of this id alone; `listed` has those of the request's `logprob_ids`."""

    token: int
    best: tuple[tuple[int, float], ...] = ()
    listed: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What a reply has gained since the piece before: a finished canvas, or all positions that are now known without a
    gap, which may be none. It took `n_steps` passes, which ran `n_rows` rows where there are no canvases.

    `finish` is None where more follows, "stop" where the last id ends the text, and "length" where the reply has
    reached its limit. The engine found `n_cached` of the prompt's tokens in its cache. `chunk_size` is the most rows of
    a chunk, for a reply whose chunks have one size at any load.
    """

    positions: tuple[Position, ...]
    n_steps: int
    finish: Finish | None = None
    n_cached: int = 0
    n_rows: int = 0
    n_canvases: int = 1
    chunk_size: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole reply: its positions, and what it took: `n_steps` passes, which ran `n_rows` rows, and `n_canvases`. The
    engine found `n_cached` of the `n_prompt` tokens of the prompt in its cache. finish, chunk_size: see Piece."""

    positions: tuple[Position, ...]
    finish: Finish
    n_prompt: int
    n_cached: int
    n_steps: int
    n_canvases: int
    n_rows: int = 0
    chunk_size: int | None = None

    @classmethod
    def of(cls, pieces: Sequence[Piece], *, n_prompt: int, n_cached: int) -> Generation:
        """Join all pieces of a reply; the last one has its `finish`."""
        finish = pieces[-1].finish
        assert finish is not None
        positions = tuple(position for piece in pieces for position in piece.positions)
        n_steps, n_canvases, n_rows = (
            sum(getattr(piece, name) for piece in pieces) for name in ("n_steps", "n_canvases", "n_rows")
        )
        return cls(positions, finish, n_prompt, n_cached, n_steps, n_canvases, n_rows, pieces[-1].chunk_size)

    @property
    def tokens(self) -> list[int]:
        """The reply's ids, the one that ended it included."""
        return [position.token for position in self.positions]
