"""StubWriter: a writer without a model, for tests of what stands around one. What it writes, it is told."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from ramet.generation import GenerationRequest, Kind, Piece, Position
from ramet.text.conversation import Conversation
from tests.text.test_tokenizer_spm import IDS, PLAIN

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools, please') }}{% endif %}"
    "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}{% if enable_thinking %}think{% endif %}"
)
END = IDS["<end_of_turn>"]


def written(text: str) -> list[int]:
    """Ids of a reply, its end included."""
    return [*PLAIN.encode(text), END]


@dataclass
class StubWriter:
    """Writes `reply`, of a prompt that `replies` has another one; in canvases of `width`, of `n_steps` each. One of
    another `kind` writes pieces of `widths` in turn, each of `n_steps` with `n_rows` in all.

    Set the fields at any time. `failure` is raised before the canvas of the number `fails_at`; `received`,
    `n_running`, `n_cancelled` and `n_canvases` tell what happened."""

    reply: Sequence[int] = ()
    replies: dict[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    kind: Kind = "canvas"
    width: int = 8
    widths: Sequence[int] = (0, 3, 1)
    n_rows: int = 12
    n_steps: int = 3
    n_cached: int = 2
    chunk_size: int | None = None
    delay_s: float = 0.0
    failure: Exception | None = None
    fails_at: int = 0
    max_running: int = 1000
    conversation: Conversation = field(default_factory=lambda: Conversation(PLAIN, TEMPLATE))
    received: list[GenerationRequest] = field(default_factory=list)
    n_running: int = 0
    n_cancelled: int = 0
    n_canvases: int = 0

    @property
    def vocab_size(self) -> int:
        return len(IDS)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        self.received.append(request)
        self.n_running += 1
        complete = False
        try:
            pieces = self._pieces(request)
            for i, piece in enumerate(pieces):
                await asyncio.sleep(self.delay_s)
                if self.failure is not None and i == self.fails_at:
                    raise self.failure
                self.n_canvases += 1
                complete = piece.finish is not None
                yield piece
        finally:
            self.n_running -= 1
            self.n_cancelled += not complete

    def _pieces(self, request: GenerationRequest) -> list[Piece]:
        ids = list(self.replies.get(request.prompt, self.reply))
        finish = "stop"
        if request.max_tokens is not None and request.max_tokens < len(ids):
            ids, finish = ids[: request.max_tokens], "length"
        positions = [told(token, request, self.kind) for token in ids]
        pieces = [self._piece(tuple(positions[a:b])) for a, b in itertools.pairwise(self._cuts(len(ids)))]
        pieces[-1] = replace(pieces[-1], finish=finish)  # type: ignore[arg-type]
        return pieces

    def _cuts(self, n: int) -> list[int]:
        widths = itertools.cycle([self.width] if self.kind == "canvas" else self.widths)
        cuts = [0]
        while cuts[-1] < n or len(cuts) < 2:
            cuts.append(cuts[-1] + next(widths))
        return cuts

    def _piece(self, positions: tuple[Position, ...]) -> Piece:
        canvas = self.kind == "canvas"
        n_rows = 0 if canvas else self.n_rows
        return Piece(positions, self.n_steps, None, self.n_cached, n_rows, int(canvas), self.chunk_size)


def told(token: int, request: GenerationRequest, kind: Kind = "canvas") -> Position:
    """The token first, then the ids behind it in the vocabulary; each half as likely as the one before. Without
    canvases the token alone."""
    assert kind == "canvas" or (request.n_best <= 1 and not request.logprob_ids)
    others = [(token + n) % len(IDS) for n in range(request.n_best)]
    best = tuple((i, -math.log(2) * (n + 1)) for n, i in enumerate(others))
    return Position(token, best, tuple((i, -math.log(2) * ((i - token) % len(IDS) + 1)) for i in request.logprob_ids))
