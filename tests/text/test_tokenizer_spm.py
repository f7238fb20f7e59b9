"""SentencePiece vocabularies of GGUF files: the ids are those of joining the best-scored neighbours first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import CheckpointError
from ramet.text.chat import frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_gguf import gguf_tokenizer

SPACE = "▁"
CONTROL = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
USER_DEFINED = ["\n", "\n\n", "  ", "   ", "<b>", "[multimodal]"]  # runs of spaces as converters write them
LETTERS = [SPACE, *"abcdefghijklmnopqrstuvwxyzABC<>[]_/.,é"]
JOINED = [
    "ab", "bc", "aba", f"{SPACE}a", f"{SPACE}b", "abc", "ca", "aa", "aaa", f"{SPACE}ab", "th", "the", f"{SPACE}the",
    "er", "<b", "bos", "st", "of", "turn", f"a{SPACE}",
]  # fmt: skip
KINDS = {  # in the order of their ids
    **dict.fromkeys(CONTROL, TokenType.CONTROL), "<unk>": TokenType.UNKNOWN,
    **dict.fromkeys(USER_DEFINED, TokenType.USER_DEFINED),
    **dict.fromkeys((f"<0x{b:02X}>" for b in range(256)), TokenType.BYTE),
    **dict.fromkeys(JOINED + LETTERS, TokenType.NORMAL),
}  # fmt: skip
TOKENS = list(KINDS)
IDS = {token: i for i, token in enumerate(TOKENS)}
SCORES = {piece: -float(n) for n, piece in enumerate(JOINED + LETTERS)}


def metadata(**changes: Any) -> dict[str, Any]:
    """As converters write them; None leaves a key out."""
    keys = {
        "model": "llama", "pre": "default", "tokens": TOKENS, "token_type": [int(kind) for kind in KINDS.values()],
        "scores": [SCORES.get(token, -1000.0) for token in TOKENS], "bos_token_id": IDS["<bos>"],
        "eos_token_id": IDS["<eos>"], "unknown_token_id": IDS["<unk>"], "add_bos_token": True,
        "add_space_prefix": False,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def tokenizer(**changes: Any) -> Tokenizer:
    return gguf_tokenizer(metadata(**changes), "here")


PLAIN = tokenizer()


def joined(text: str) -> list[int]:
    """Characters, of which the two neighbours whose piece has the highest score are joined, the leftmost first; bytes
    for characters that are no piece."""
    parts = list(text.replace(" ", SPACE))
    while True:
        pairs = [(SCORES[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in SCORES]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    spelled = [[part] if part in SCORES else [f"<0x{b:02X}>" for b in part.encode()] for part in parts]
    return [IDS[token] for piece in spelled for token in piece]


@settings(max_examples=300, deadline=None)
@given(st.text("abcther <é你🦩_", max_size=30).filter(lambda text: "  " not in text and "<b>" not in text))
def test_the_best_score_is_joined_first(text: str) -> None:
    assert PLAIN.encode(text) == joined(text)
    assert PLAIN.decode(PLAIN.encode(text)) == text


def test_user_defined_tokens() -> None:
    """White space and HTML tags are text, and are taken whole; the rest of them are not a caller's to write."""
    assert PLAIN.encode("a  b\n\n\n<b>") == [IDS[t] for t in ("a", "  ", "b", "\n\n", "\n", "<b>")]
    assert PLAIN.decode(PLAIN.encode("a   b\n")) == "a   b\n"
    assert IDS["[multimodal]"] in PLAIN.encode_rendered("a[multimodal]")
    assert IDS["[multimodal]"] not in PLAIN.encode("a[multimodal]")


@pytest.mark.parametrize("text", ["<bos>hi", "<start_of_turn>a", "<eos><end_of_turn>", "<unk>", "<0x0A>"])
def test_a_callers_text_never_becomes_a_control_token(text: str) -> None:
    ids = PLAIN.encode(text)
    assert {TOKENS[i] for i in ids}.isdisjoint({*CONTROL, "<unk>", text})
    assert PLAIN.decode(ids) == text
    if text != "<0x0A>":
        assert set(PLAIN.encode_rendered(text)) & {PLAIN.control[t] for t in (*CONTROL, "<unk>")}


@pytest.mark.parametrize(("says", "bos"), [(True, True), (False, False), (None, True)])
def test_bos_once_or_never(says: bool | None, bos: bool) -> None:
    """D5: as the metadata say, and where they say nothing, as all readers of such files do."""
    found = tokenizer(add_bos_token=says)
    prompt = frame(found, None).prompt(found, "<bos>hi")
    assert prompt.count(IDS["<bos>"]) == bos
    assert (prompt[0] == IDS["<bos>"]) == bos
    template = "{{ bos_token }}<start_of_turn>{{ messages[0].content }}<end_of_turn>\n{{ '<start_of_turn>' }}"
    assert frame(found, template).prompt(found, "hi").count(IDS["<bos>"]) == 1


@pytest.mark.parametrize("prefix", [True, None])
def test_a_space_before_a_whole_text(prefix: bool | None) -> None:
    """Unless the file says that there is none. It belongs to the frame: a caller's text stands in the middle."""
    found = tokenizer(add_space_prefix=prefix)
    assert found.encode_rendered("the") == [IDS["▁the"]]
    assert found.encode("the") == [IDS["the"]]
    assert frame(found, None).prompt(found, "the") == [IDS["<bos>"], IDS["▁the"]]


def test_equal_texts_keep_their_own_ids() -> None:
    """D3: "a" and "▁a" are one word to a reader, and two ids; each decodes to what it stands for."""
    assert PLAIN.encode("a") == [IDS["a"]]
    assert PLAIN.encode(" a") == [IDS["▁a"]]
    assert (PLAIN.decode([IDS["a"]]), PLAIN.decode([IDS["▁a"]])) == ("a", " a")


def test_a_piece_that_crosses_the_cut_is_noticed() -> None:
    assert PLAIN.splits_before_words
    tokens = [*TOKENS, "\n0"]
    types, scores = ([{**KINDS}.get(t, 1) for t in tokens], [SCORES.get(t, -1000.0) for t in tokens])
    assert not tokenizer(tokens=tokens, token_type=types, scores=scores).splits_before_words


@pytest.mark.parametrize("changes", [{"scores": None}, {"scores": [0.0]}, {"token_type": [1, 1]}])
def test_scores_and_types_must_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"here: tokenizer\.ggml\.scores or token_type do not fit"):
        tokenizer(**changes)
