"""TextStream: the text of ids that arrive one by one."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ramet.text.tokenizer import Tokenizer


class TextStream:
    """Returns the text that is certain. Holds back the first bytes of a character, and text that may begin one of
    `stops`; the whole text ends where the first stop begins.

    All returned parts, joined, are the text of all ids, however they arrive. Special control tokens have no text unless
    `special` is set. Bytes that make no character become U+FFFD; those of a character cut off at the end become one.
    """

    def __init__(self, tokenizer: Tokenizer, stop_texts: Sequence[str] = (), *, special: bool = False) -> None:
        assert all(stop_texts)
        self._tokenizer = tokenizer
        self._stop_texts = tuple(stop_texts)
        self._hidden = frozenset() if special else tokenizer.special
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None  # by which of the stops
        self.n_characters = 0  # of all whole characters so far, those that are held back among them

    def push(self, token: int) -> str:
        """The text that has become certain with one more id. No id may follow a stop."""
        assert self.stopped is None
        if token in self._hidden:
            return ""
        return self._certain(self._bytes.decode(self._tokenizer.spelling[token]))

    def finish(self) -> str:
        """The text that was held back, as no id follows."""
        if self.stopped is not None:
            return ""
        text = self._certain(self._bytes.decode(b"", True))
        rest, self._held = self._held, ""
        return text + rest

    def _certain(self, text: str) -> str:
        self.n_characters += len(text)
        held = self._held + text
        found = [(at, stop) for stop in self._stop_texts if (at := held.find(stop)) >= 0]
        if found:
            end, self.stopped = min(found)
            self._held = ""
            return held[:end]
        end = len(held) - max((_begun(held, stop) for stop in self._stop_texts), default=0)
        self._held = held[end:]
        return held[:end]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of the text may be the first ones of a stop."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
