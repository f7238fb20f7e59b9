"""TextReply: turns the pieces of a generation into text as they come, and counts what they took."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ramet.generation import Finish, Piece, Position
from ramet.server.openai.reply_counts import ReplyCounts
from ramet.server.openai.text_request import TextRequest
from ramet.text.stream import TextStream
from ramet.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """What a piece added: text that is certain, and positions with the characters before each."""

    text: str = ""
    positions: tuple[Position, ...] = ()
    offsets: tuple[int, ...] = ()
    finish: Finish | None = None
    reason: str | int | None = None  # which of the request's stops ended the reply

    def __add__(self, other: Delta) -> Delta:
        return Delta(
            self.text + other.text, self.positions + other.positions, self.offsets + other.offsets,
            other.finish, other.reason,
        )  # fmt: skip


@dataclass
class TextReply:
    """One reply under way. The model, the request's limit or one of its stops ends it. A token that completes a stop is
    the last one that counts."""

    stream: TextStream
    stop_ids: Collection[int]
    counts: ReplyCounts
    finish: Finish | None = field(default=None, init=False)

    @classmethod
    def of(cls, request: TextRequest, tokenizer: Tokenizer, n_prompt: int) -> TextReply:
        stream = TextStream(tokenizer, request.stop, special=not request.skip_special_tokens)
        return cls(stream, frozenset(request.stop_token_ids), ReplyCounts(n_prompt))

    def take(self, piece: Piece) -> Delta:
        """What a piece adds. No piece may follow a delta that has a finish."""
        assert self.finish is None
        self.counts.n_steps += piece.n_steps
        self.counts.n_rows += piece.n_rows
        self.counts.n_canvases += piece.n_canvases
        self.counts.chunk_size = piece.chunk_size
        self.counts.n_cached = max(self.counts.n_cached, piece.n_cached)
        texts, offsets = list[str](), list[int]()
        reason: str | int | None = None
        for position in piece.positions:
            offsets.append(self.stream.n_characters)
            if position.token in self.stop_ids:
                reason = position.token
                break
            texts.append(self.stream.push(position.token))
            if self.stream.stopped is not None:
                break
        self.counts.count(len(offsets))
        if reason is not None or piece.finish is not None or self.stream.stopped is not None:
            texts.append(self.stream.finish())
            reason = self.stream.stopped if reason is None else reason
            self.finish = piece.finish if reason is None else "stop"
        return Delta("".join(texts), piece.positions[: len(offsets)], tuple(offsets), self.finish, reason)
