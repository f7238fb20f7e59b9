"""TextStream and Spelling: the same text however ids come, half a character and the beginning of a stop held back."""

from __future__ import annotations

import itertools

import pytest
from fixtures import vocabularies
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from ramet.text.stream import TextStream
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_spm import spm_tokenizer
from tests.text.test_tokenizer_spm import IDS, PLAIN, metadata

TEXTS = ("🦩 é 你好 👩‍🚀", "the cab\n\nab  <b>", "x" * 40, "\u0303 \u200b한국어🇫🇮", "")


def tokenizer_of(name: str) -> Tokenizer:
    return PLAIN if name == "spm" else {"smollm2": vocabularies.smollm2, "qwen": vocabularies.qwen}[name]()[0]


def streamed(tokenizer: Tokenizer, ids: list[int], *stops: str) -> tuple[list[str], str | None]:
    """The deltas, and what stopped them."""
    stream, deltas = TextStream(tokenizer, stops), []
    for token in ids:
        deltas.append(stream.push(token))
        if stream.stopped is not None:
            break
    deltas.append(stream.finish())
    return deltas, stream.stopped


@pytest.mark.parametrize("name", ["spm", "smollm2", "qwen"])
@pytest.mark.parametrize("text", TEXTS)
def test_joined_deltas_are_the_text(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text)
    deltas, stopped = streamed(tokenizer, ids)
    assert ("".join(deltas), stopped) == (text, None)
    assert tokenizer.decode(ids) == text
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("name", ["spm", "smollm2", "qwen"])
def test_a_text_cut_inside_a_character_shows_it_once_and_last(name: str) -> None:
    tokenizer = tokenizer_of(name)
    text = "你🦩👩‍🚀é"
    ids = tokenizer.encode(text)
    whole = {len(text[:n].encode()): text[:n] for n in range(len(text) + 1)}
    n_cut = 0
    for n in range(len(ids) + 1):
        deltas, _ = streamed(tokenizer, ids[:n])
        size = sum(len(tokenizer.spelling[i]) for i in ids[:n])
        complete = whole[max(length for length in whole if length <= size)]
        cut = size not in whole
        n_cut += cut
        assert "".join(deltas) == complete + "\ufffd" * cut
        assert not any("\ufffd" in delta for delta in deltas[:-1])
    assert n_cut > 3


@given(st.lists(st.integers(0, len(IDS) - 1), max_size=30))
def test_any_ids_give_one_text(ids: list[int]) -> None:
    """Also those that no text has: with later ones known first it is the order in the reply that counts."""
    deltas, _ = streamed(PLAIN, ids)
    spelled = b"".join(PLAIN.spelling[i] for i in ids if i not in PLAIN.special)
    assert "".join(deltas) == spelled.decode("utf-8", "replace")


def spaced(decoder: decoders.Decoder | None) -> Tokenizer:
    """Of a vocabulary that writes a space before each text; its own decoder takes it away again."""
    full = spm_tokenizer(metadata(add_space_prefix=True), "here")[0]
    full.decoder = full.decoder if decoder is None else decoder
    return Tokenizer(full)


SPACED = [spaced(each) for each in (None, decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never"))]


@pytest.mark.parametrize("tokenizer", SPACED)
@given(ids=st.lists(st.sampled_from([i for i, token in enumerate(IDS) if not token.startswith("<0x")]), max_size=12))
def test_a_reply_is_what_its_ids_add_to_the_prompt_s(tokenizer: Tokenizer, ids: list[int]) -> None:
    """Also of vocabularies whose decoders take a space away at the start of a text: a reply is none."""
    prompt = tokenizer.encode_rendered("the cab")
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *ids])
    stream = TextStream(tokenizer, special=True)
    assert "".join([*map(stream.push, ids), stream.finish()]) == whole.removeprefix(before)


@pytest.mark.parametrize("name", ["smollm2", "qwen"])
def test_bytes_of_ids_are_what_they_decode_to(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for token in itertools.chain(range(0, tokenizer.vocab_size, 97), tokenizer.control.values()):
        spelled = tokenizer.spelling[token]
        assert tokenizer.decode([token]) == spelled.decode("utf-8", "replace") or b"\xef\xbf\xbd" in spelled


def test_words_with_a_space_before_them_have_other_bytes() -> None:
    assert PLAIN.spelling[IDS["▁the"]] == b" the"
    assert PLAIN.spelling[IDS["the"]] == b"the"
    assert PLAIN.spelling[IDS["<0xC3>"]] == b"\xc3"
    assert PLAIN.spelling[len(IDS) + 7] == b""


def test_special_tokens_stand_for_nothing_unless_asked_for() -> None:
    ids = [IDS["ab"], IDS["<end_of_turn>"], IDS["ca"]]
    assert "".join(streamed(PLAIN, ids)[0]) == "abca"
    stream = TextStream(PLAIN, special=True)
    assert "".join([*map(stream.push, ids), stream.finish()]) == "ab<end_of_turn>ca"


@pytest.mark.parametrize(
    ("text", "stops", "rest", "by"),
    [
        ("the cab", ("ca",), "the ", "ca"),
        ("the cab", ("the",), "", "the"),
        ("abababc", ("ababc",), "ab", "ababc"),
        ("aaab", ("aab",), "a", "aab"),
        ("the cab", ("x", "b"), "the ca", "b"),
        ("the ca", ("cab",), "the ca", None),
        ("a🦩b", ("🦩",), "a", "🦩"),
        ("ab\n\nab", ("\n\n",), "ab", "\n\n"),
    ],
)
def test_stops(text: str, stops: tuple[str, ...], rest: str, by: str | None) -> None:
    deltas, stopped = streamed(PLAIN, PLAIN.encode(text), *stops)
    assert ("".join(deltas), stopped) == (rest, by)


@settings(max_examples=200, deadline=None)
@given(st.text("abc ", max_size=25), st.lists(st.text("abc ", min_size=1, max_size=4), min_size=1, max_size=4))
def test_nothing_of_a_stop_is_given_out(text: str, stops: list[str]) -> None:
    deltas, stopped = streamed(PLAIN, PLAIN.encode(text), *stops)
    out = "".join(deltas)
    assert not any(stop in out for stop in stops)
    assert text.startswith(out)
    if stopped is None:
        assert out == text
    else:
        assert text[len(out) :].startswith(stopped)
