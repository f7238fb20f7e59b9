"""Request bodies of a given size, the same bytes for every server."""

from __future__ import annotations

import json
import random

from ramet.bench.core.shapes import DecisionShape
from ramet.text.tokenizer import Tokenizer

MODEL = "jev-latest"  # the name under which every server of a comparison serves
N_OPTIONS = 4
_QUESTION_WORDS = 10
_TEXT = (
    "people water house story river market winter letter music garden window doctor summer paper school "
    "morning street family number country light answer reason table minute picture engine forest bridge "
    "captain village teacher station island journey harbour silver simple early heavy quiet narrow common "
    "open gentle large late often never always under over after before between around towards across"
)
WORDS = _TEXT.split()


def text(rng: random.Random, n_words: int) -> str:
    """Made-up words."""
    return " ".join(rng.choices(WORDS, k=n_words))


class Bodies:
    """Draws bodies whose state has exactly as many tokens as a shape asks for, or as few less as words allow."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self._tokenizer, self._rng = tokenizer, rng

    def draw(self, shape: DecisionShape) -> bytes:
        """One request. Its state begins with a tag of its own, so that no earlier request has its tokens."""
        questions = {f"q{i}": self._question(i) for i in range(shape.n_questions)}
        # "letters" lists the options and reads one row a question: what vLLM does too, which ignores the field.
        body = {"model": MODEL, "state": self._state(shape.n_state), "questions": questions, "x_method": "letters"}
        return json.dumps(body).encode()

    def _state(self, n_tokens: int) -> str:
        tag = f"{self._rng.getrandbits(48):012x}"
        words = [tag, *self._rng.choices(WORDS, k=n_tokens)]
        while len(words) > 1 and (excess := self._count(words) - n_tokens) > 0:
            del words[max(1, len(words) - max(1, excess // 3)) :]
        return " ".join(words)

    def _count(self, words: list[str]) -> int:
        return len(self._tokenizer.encode(" ".join(words)))

    def _question(self, i: int) -> dict[str, object]:
        words = text(self._rng, _QUESTION_WORDS)
        options = {f"{self._rng.choice(WORDS)}{j}": None for j in range(N_OPTIONS)}
        return {"type": "choice", "instructions": f"number {i} {words}?", "criteria": options}
