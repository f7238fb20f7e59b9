"""How long planning takes tells no tenant what another has asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fixtures.vocabularies import qwen

from ramet.decide.decider import Decider
from ramet.decide.settings import DecideSettings
from ramet.request import DecisionRequest, Method
from ramet.text.tokenizer import Tokenizer

STATE = "The parcel came late, and the seller has not answered for a week now. " * 40
QUESTIONS = {
    "late": {"type": "noul", "instructions": "Did the parcel come late?"},
    "topic": {"type": "choice", "criteria": {"delivery": "about parcels", "money": None}},
    "anger": {"type": "score", "criteria": ["calm", "angry"]},
}


class Watched:
    """A tokenizer that notes what it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        return self.encode_each([text])[0]

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        self.texts += texts
        return self._tokenizer.encode_each(texts)


@pytest.mark.parametrize("method", ["letters", "options"])
def test_what_one_has_asked_costs_another_as_much_as_what_nobody_has(method: Method) -> None:
    tokenizer, frame = qwen()[:2]
    watched = Watched(tokenizer)
    decider = Decider(watched, frame, DecideSettings(method=method))  # type: ignore[arg-type]

    def encoded(salt: str) -> list[str]:
        watched.texts = []
        asked = {"state": STATE, "questions": QUESTIONS, "cache_salt": salt}
        assert decider.plan(DecisionRequest.parse(asked)).n_questions == len(QUESTIONS)
        return watched.texts

    first = encoded("a")
    assert len("".join(first)) > len(STATE)
    assert len("".join(encoded("a"))) < len(STATE) / 2  # whoever asks again is remembered
    assert encoded("b") == first
    assert encoded("") == first
