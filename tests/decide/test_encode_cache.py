"""Long texts are encoded where they are new, and their ids are those of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fixtures.vocabularies import Greedy, qwen, smollm2
from hypothesis import given
from hypothesis import strategies as st

from ramet.decide.budget import Budget
from ramet.decide.encode_cache import LEAST, TOGETHER, EncodeCache
from ramet.errors import InvalidRequest, RequestTooLong
from ramet.text.tokenizer import Tokenizer

OWNER = b""
TOKENIZERS = {"smollm2": smollm2()[0], "qwen": qwen()[0]}
WORDS = ("word", "Two words", "don't", "42", " ", "  ", "\n", "\t", ".")
PIECES = st.sampled_from(
    [
        "word",
        "Two words",
        "don't",
        "42",
        " ",
        "  ",
        "\n",
        "\t",
        ".",
        '{"a": "b", ',
        "é",
        "e\u0301",
        "你好",
        "🦩",
        "<|im_end|>",
    ]
)
TEXTS = st.lists(PIECES | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=12).map(" ".join)


class Watched:
    """A tokenizer that notes what it is asked to encode."""

    splits_between_words = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.check_length = tokenizer.check_length
        self.texts: list[str] = []

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        self.texts.extend(texts)
        return self._tokenizer.encode_each(texts)


def state(n_words: int) -> str:
    return " ".join(f"word {'abcdefgh'[i % 8]} {i}" for i in range(n_words))


@given(texts=st.lists(TEXTS, min_size=1, max_size=4), repeats=st.integers(1, 60))
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_the_whole(name: str, texts: list[str], repeats: int) -> None:
    tokenizer = TOKENIZERS[name]
    passages, text = EncodeCache(tokenizer, 1 << 20), " and so on ".join(texts * repeats)
    for _ in range(2):  # from nothing, and from what is kept
        ids = passages.encode(text, OWNER, Budget())
        assert ids.dtype == np.int32
        assert ids.tolist() == tokenizer.encode(text)


@given(before=TEXTS.map(lambda text: f"{text}x"), after=TEXTS.map(lambda text: f" y{text}"))
def test_a_cut_between_words_changes_no_ids(before: str, after: str) -> None:
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.splits_between_words
        assert tokenizer.encode(before + after) == tokenizer.encode(before) + tokenizer.encode(after)


def test_a_state_that_grows_is_encoded_where_it_is_new() -> None:
    watched = Watched(TOKENIZERS["smollm2"])
    passages = EncodeCache(watched, 1 << 20)  # type: ignore[arg-type]
    for n_words in (2000, 2050, 2100):
        text = state(n_words)
        assert passages.encode(text, OWNER, Budget()).tolist() == TOKENIZERS["smollm2"].encode(text)
        encoded, watched.texts = sum(map(len, watched.texts)), []
        assert encoded == len(text) if n_words == 2000 else 0 < encoded < 3 * LEAST


def test_what_one_owner_has_encoded_is_encoded_again_for_another() -> None:
    watched = Watched(TOKENIZERS["smollm2"])
    passages, text = EncodeCache(watched, 1 << 20), state(1000)  # type: ignore[arg-type]
    for owner in (b"a", b"b"):
        watched.texts = []
        passages.encode(text, owner, Budget())
        assert "".join(watched.texts) == text


def test_more_than_there_is_room_for_is_not_encoded_to_its_end() -> None:
    watched = Watched(TOKENIZERS["smollm2"])
    passages, text = EncodeCache(watched, 1 << 20), state(100_000)  # type: ignore[arg-type]
    with pytest.raises(RequestTooLong, match=r"at least .* 1000 at most"):
        passages.encode(text, OWNER, Budget(1000))
    assert sum(map(len, watched.texts)) < 2 * TOGETHER * LEAST < len(text) / 4


def test_little_room_keeps_little() -> None:
    watched = Watched(TOKENIZERS["smollm2"])
    passages, text = EncodeCache(watched, 4 * LEAST), state(4000)  # type: ignore[arg-type]
    for _ in range(2):
        watched.texts = []
        assert passages.encode(text, OWNER, Budget()).tolist() == TOKENIZERS["smollm2"].encode(text)
        assert sum(map(len, watched.texts)) > len(text) / 2


def test_a_tokenizer_whose_tokens_span_words_gets_the_whole() -> None:
    greedy = Greedy("d wor", "word")
    text = state(1000)
    assert EncodeCache(greedy, 1 << 20).encode(text, OWNER, Budget()).tolist() == greedy.encode(text)  # type: ignore[arg-type]


def test_half_a_character_far_behind() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        EncodeCache(TOKENIZERS["smollm2"], 1 << 20).encode(state(1000) + "\ud83d", OWNER, Budget())
