"""Where a reply begins, and which ids its first text has there."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.decide.prompt import ANSWER
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplyStart:
    """The text `before` a reply since the last control token, its `ids`, and the `lead` that a reply begins with.

    The lead is a space where the reply goes on in a line of text, as behind a plain prompt, and
    nothing where it begins a line or follows a control token.
    """

    before: str
    ids: tuple[int, ...]
    lead: str

    @classmethod
    def of(cls, tokenizer: Tokenizer, frame: Frame) -> ReplyStart:
        """The start that a frame's tail leads to; for an empty tail, what a plain prompt ends with."""
        control = set(tokenizer.control.values())
        last = max((i for i, token in enumerate(frame.tail) if token in control), default=-1)
        ids = frame.tail[last + 1 :] if frame.tail else tuple(tokenizer.encode(f"\n{ANSWER}{frame.closing}"))
        before = tokenizer.decode(ids)
        return cls(before, ids, " " if before and not before[-1].isspace() else "")

    def single(self, tokenizer: Tokenizer, text: str) -> int | None:
        """The id of `text` as the reply's first token, or None where it is not exactly one token in that place."""
        ids = tuple(tokenizer.encode(self.before + self.lead + text))
        return ids[-1] if ids[:-1] == self.ids else None

    def cue(self, tokenizer: Tokenizer, frame: Frame) -> list[int]:
        """Ids of the ``Answer:`` that an option's text follows behind a space; none where the prompt ends in it."""
        return tokenizer.encode(self.lead + ANSWER) if frame.tail else []
