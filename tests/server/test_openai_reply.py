"""Reply and logprobs: where a reply ends, what counts, and tokens that are told by their ids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from fakes.stub_writer import END, told, written

from ramet.generation import Finish, GenerationRequest, Piece, Position
from ramet.server.openai.logprobs import LOWEST, chat_logprobs, completion_logprobs
from ramet.server.openai.request import ChatRequest, CompletionRequest
from ramet.server.openai.text_reply import Delta, TextReply
from ramet.server.openai.text_request import TextRequest
from tests.text.test_tokenizer_spm import IDS, PLAIN

CHAT = {"messages": [{"role": "user", "content": "ab"}]}
TEXT = {"prompt": "ab"}
WORD, SPACED = IDS["the"], IDS["▁the"]  # the same word without and with a space before it
HALF = IDS["<0xF0>"]


def replied(
    request: TextRequest, ids: Sequence[int], width: int, finish: Finish = "stop"
) -> tuple[list[Delta], TextReply]:
    """Of ids that come `width` at a time."""
    (asked,) = request.generations(_conversation())
    reply, deltas = TextReply.of(request, PLAIN, 3), []
    for at in range(0, len(ids), width):
        last = at + width >= len(ids)
        positions = tuple(told(i, asked) for i in ids[at : at + width])
        deltas.append(reply.take(Piece(positions, 2, finish if last else None, 1)))
        if deltas[-1].finish is not None:
            break
    return deltas, reply


def _conversation() -> object:
    from fakes.stub_writer import StubWriter

    return StubWriter().conversation


def chat(**fields: object) -> ChatRequest:
    return ChatRequest.parse(CHAT | fields)


@pytest.mark.parametrize("width", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stop", "text", "n_tokens", "finish", "reason"),
    [
        ([], "ab 🦩the cab", None, "stop", None),
        ([" cab"], "ab 🦩the", None, "stop", " cab"),
        (["🦩"], "ab ", 6, "stop", "🦩"),
        (["x", "he"], "ab 🦩t", 7, "stop", "he"),
    ],
)
def test_stops(width: int, stop: list[str], text: str, n_tokens: int | None, finish: str, reason: str | None) -> None:
    """However it comes; the token that completes a stop is the last one that counts."""
    ids = written("ab 🦩the cab")
    deltas, reply = replied(chat(stop=stop), ids, width)
    assert "".join(delta.text for delta in deltas) == text
    assert (deltas[-1].finish, deltas[-1].reason) == (finish, reason)
    assert sum(len(delta.positions) for delta in deltas) == reply.counts.n_tokens
    if n_tokens is not None:
        assert reply.counts.n_tokens == n_tokens
    assert (reply.counts.n_canvases, reply.counts.n_steps) == (len(deltas), 2 * len(deltas))
    assert (reply.counts.n_prompt, reply.counts.n_cached) == (3, 1)


def test_a_token_that_ends_a_reply_is_no_text_of_it() -> None:
    deltas, reply = replied(chat(stop_token_ids=[WORD]), [IDS["ab"], WORD, IDS["ab"], END], 2)
    assert [(d.text, d.finish, d.reason) for d in deltas] == [("ab", "stop", WORD)]
    assert reply.counts.n_tokens == 2


def test_a_reply_that_ends_for_length() -> None:
    deltas, _ = replied(chat(stop=["abz"]), [IDS["ab"]], 1, "length")
    assert [(d.text, d.finish) for d in deltas] == [("ab", "length")]


def test_a_reply_cut_inside_a_character() -> None:
    deltas, _ = replied(chat(), PLAIN.encode("ab🦩")[:-1], 2, "length")
    assert "".join(d.text for d in deltas) == "ab\ufffd"
    assert not any("\ufffd" in d.text for d in deltas[:-1])


def test_special_tokens_are_shown_if_asked_for() -> None:
    deltas, _ = replied(chat(skip_special_tokens=False), written("ab"), 9)
    assert deltas[0].text == "ab<end_of_turn>"


def test_offsets_are_places_in_the_text() -> None:
    ids = written("ab🦩the")
    for width in (1, 4, 100):
        deltas, _ = replied(CompletionRequest.parse(TEXT), ids, width)
        offsets = [offset for delta in deltas for offset in delta.offsets]
        assert offsets == [0, 2, 2, 2, 2, 3, 6][: len(ids)]


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_a_token_has_one_value_however_many_are_asked_for(n: int) -> None:
    request = chat(logprobs=True, top_logprobs=n)
    (delta,), _ = replied(request, [SPACED], 1)
    found = chat_logprobs(request, PLAIN, delta)
    assert found is not None
    (position,) = found.content
    top = [(bytes(each.bytes), each.logprob) for each in position.top_logprobs]
    assert [p for _, p in top] == [-math.log(2) * (i + 1) for i in range(n)]
    assert top[0] == (b" the", position.logprob)
    assert (position.token, bytes(position.bytes)) == (" the", b" the")


def test_tokens_that_look_alike_do_not_overwrite_one_another() -> None:
    """Of the same bytes, too: a letter, and the byte that stands for it."""
    letter, byte = IDS["a"], IDS["<0x61>"]
    best = tuple((i, -float(n)) for n, i in enumerate([WORD, SPACED, letter, byte, HALF, IDS["<0xF1>"]]))
    delta = Delta("the", (Position(WORD, best),), (0,), "stop")
    listed = chat_logprobs(chat(logprobs=True, top_logprobs=6), PLAIN, delta)
    assert listed is not None
    assert [bytes(t.bytes) for t in listed.content[0].top_logprobs] == [b"the", b" the", b"a", b"a", b"\xf0", b"\xf1"]
    keyed = completion_logprobs(CompletionRequest.parse(TEXT | {"logprobs": 6}), PLAIN, delta)
    assert keyed is not None
    assert keyed.top_logprobs == [
        {"the": 0.0, " the": -1.0, "a": -2.0, f"token_id:{byte}": -3.0, "bytes:\\xf0": -4.0, "bytes:\\xf1": -5.0}
    ]
    assert (keyed.tokens, keyed.token_logprobs, keyed.text_offset) == (["the"], [0.0], [0])


def test_the_reply_s_own_token_is_added_where_it_is_not_among_the_likeliest() -> None:
    delta = Delta("b", (Position(IDS["b"], ((IDS["a"], -0.5), (IDS["b"], -2.0))),), (0,), "stop")
    listed = chat_logprobs(chat(logprobs=True, top_logprobs=1), PLAIN, delta)
    assert listed is not None
    assert [(t.token, t.logprob) for t in listed.content[0].top_logprobs] == [("a", -0.5), ("b", -2.0)]
    assert listed.content[0].logprob == -2.0
    without = chat_logprobs(chat(logprobs=True), PLAIN, delta)
    assert without is not None
    assert (without.content[0].token, without.content[0].top_logprobs) == ("b", [])


def test_named_ids_come_behind_the_likeliest_one() -> None:
    request = chat(logprobs=True, top_logprobs=20, logprob_token_ids=[IDS["b"], WORD, IDS["c"]],
                   return_tokens_as_token_ids=True)  # fmt: skip
    (asked,) = request.generations(_conversation())  # type: ignore[arg-type]
    assert asked == GenerationRequest(asked.prompt, logprob_ids=(IDS["b"], WORD, IDS["c"]), n_best=1)
    asked_for = ((IDS["b"], -3.0), (WORD, -0.1), (IDS["c"], -math.inf))
    found = chat_logprobs(request, PLAIN, Delta("the", (Position(WORD, ((WORD, -0.1),), asked_for),), (0,), "length"))
    assert found is not None
    told_as = [(t.token, t.logprob) for t in found.content[0].top_logprobs]
    ids = {name: f"token_id:{IDS[name]}" for name in ("the", "b", "c")}
    assert told_as == [(ids["the"], -0.1), (ids["b"], -3.0), (ids["c"], LOWEST)]
    assert found.content[0].token == ids["the"]


def test_none_are_told_unless_asked_for() -> None:
    (delta,), _ = replied(chat(), [WORD], 1)
    assert chat_logprobs(chat(), PLAIN, delta) is None
    assert completion_logprobs(CompletionRequest.parse(TEXT), PLAIN, delta) is None
