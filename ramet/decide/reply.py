"""Where a reply begins, and which ids a reply's text has there."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.decide.prompt import ANSWER
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplyStart:
    """The text `before` a reply since the last control token, its `ids`, and the `lead` that a reply begins with.

    The lead is a space where the reply goes on in a line of text, as behind the ``Answer:`` of a
    plain prompt, and nothing where it begins a line or follows a control token.
    """

    before: str
    ids: tuple[int, ...]
    lead: str

    @classmethod
    def of(cls, tokenizer: Tokenizer, frame: Frame) -> ReplyStart:
        """The start that a frame's tail leads to; for an empty tail, what a plain prompt ends with."""
        control = set(tokenizer.control.values())
        last = max((i for i, token in enumerate(frame.tail) if token in control), default=-1)
        ids = frame.tail[last + 1 :] if frame.tail else tuple(tokenizer.encode(ANSWER + frame.closing))
        before = tokenizer.decode(ids)
        return cls(before, ids, " " if before and not before[-1].isspace() else "")

    def single(self, tokenizer: Tokenizer, text: str) -> int | None:
        """The id of `text` as the reply's first token, or None where it is not exactly one token in that place."""
        ids = tuple(tokenizer.encode(self.before + self.lead + text))
        return ids[-1] if ids[:-1] == self.ids else None

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The ids of a reply, encoded apart from the prompt: one rule for every option, whatever the prompt ends in."""
        return tokenizer.encode(self.lead + text)
