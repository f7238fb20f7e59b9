"""What a model and its tokenizer cannot be asked, each with the field at fault; labels, wording and settings."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.vocabularies import Greedy, qwen, smollm2
from oracles.trees import path_tokens

from ramet.decide.decider import Decider
from ramet.decide.letters import VerifiedLabels
from ramet.decide.reply import ReplyStart
from ramet.decide.settings import DecideSettings, PriorWeights, Temperatures, settings_for
from ramet.errors import CheckpointError, InvalidRequest
from ramet.question import Choice, Noul, Outcomes, Question, Score
from ramet.request import DecisionRequest
from ramet.text.chat import Frame

TOKENIZER, FRAME, _ = smollm2()
LETTERS = Decider(TOKENIZER, FRAME, DecideSettings(method="letters"))
OPTIONS = Decider(TOKENIZER, FRAME, DecideSettings(method="options"))
TOY = Frame(head=(), opening="", closing="", tail=(1,), end=1, trims=False)
NOUL = Noul(instructions="Is it?")


def ask(question: Question, **more: Any) -> DecisionRequest:
    return DecisionRequest(state="s", questions={"q": question}, **more)


def refused_field(decider: Decider, request: DecisionRequest) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        decider.plan(request)
    return caught.value.field


def test_an_empty_reply_cannot_be_scored() -> None:
    assert refused_field(OPTIONS, ask(Score(criteria=["low", ""]))) == "questions.q.criteria.1"
    assert LETTERS.plan(ask(Score(criteria=["low", ""]))).n_questions == 1


@pytest.mark.parametrize(
    ("question", "listed", "options"),
    [
        (Noul(criteria=Outcomes(true="it is")), "yes: it is\nno\nAnswer with yes or no only.", "Yes: it is"),
        (
            Choice(instructions="", criteria={"a": None, "b": "B!"}),
            "A: a\nB: b - B!\nAnswer with the letter of one option only.",
            "Question:",
        ),
        (
            Choice(instructions={}, criteria={"a": None}),
            "A: a\nAnswer with the letter of one option only.",
            "Question:",
        ),
        (Score(instructions=" \n", criteria=["low"]), "0: low\nAnswer with the number of one level only.", "Question:"),
    ],
)
@pytest.mark.parametrize("vocabulary", [smollm2, qwen])
@pytest.mark.parametrize("state", ["s.", "s.  \n", ""])
def test_where_nothing_is_asked_nothing_is_invented(
    vocabulary: Any, state: str, question: Question, listed: str, options: str
) -> None:
    """The prompt says what the request does. One of the method "options", which lists none, ends in the heading."""
    tokenizer, frame, _ = vocabulary()
    before = f"{state}\n\n" if state else ""
    for method, words in (("letters", listed), ("options", options)):
        decider = Decider(tokenizer, frame, DecideSettings(method=method, prior=PriorWeights(choice=0, score=0)))  # type: ignore[arg-type]
        tree = decider.plan(ask(question).model_copy(update={"state": state})).tree
        found = path_tokens(tree, int(tree.read_segments[0]))
        whole = frame.prompt(tokenizer, before + words)
        assert found[: len(whole)] == whole
        assert found[len(whole) :] == ([] if method == "letters" else tokenizer.encode("Answer:"))


def test_objects_are_written_as_json() -> None:
    question = Choice(instructions={"ask": "é?"}, criteria={"a": {"k": ["ü"]}})
    request = DecisionRequest(state={"s": ["ö", 1]}, questions={"q": question})
    for decider in (LETTERS, OPTIONS):
        text = TOKENIZER.decode(decider.plan(request).tree.tokens.tolist())
        assert '{"s": ["ö", 1]}\n\nQuestion: {"ask": "é?"}' in text
        assert '{"k": ["ü"' in text


@pytest.mark.parametrize(
    ("scored", "expected"),
    [
        ("name", ["a", "b"]),
        ("description", ["first", "b"]),
        ("both", ["a: first", "b"]),
    ],
)
def test_which_text_of_an_option_is_scored(scored: Any, expected: list[str]) -> None:
    decider = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=PriorWeights(choice=0), scored=scored))
    tree = decider.plan(ask(Choice(criteria={"a": "first", "b": " "}))).tree
    leaves = [tree.tokens[start : start + n] for start, n in zip(tree.starts[2:], tree.lengths[2:], strict=True)]
    assert [TOKENIZER.decode(ids.tolist()) for ids in leaves] == [f" {text}" for text in expected]


@pytest.mark.parametrize("vocabulary", [smollm2, qwen])
def test_labels_are_single_tokens_of_their_own(vocabulary: Any) -> None:
    tokenizer, frame, _ = vocabulary()
    labels = VerifiedLabels(tokenizer, ReplyStart.of(tokenizer, frame))
    assert labels.complete
    assert [label.text for label in labels.letters] == list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert len(labels.pairs) >= 255
    for group in (labels.yes_no, labels.digits, labels.letters, labels.pairs):
        assert len({label.id for label in group}) == len(group)
        assert all(tokenizer.encode(label.text) == [label.id] for label in group)


def test_behind_the_26th_option_labels_have_two_letters() -> None:
    def listed(n: int) -> tuple[list[str], str]:
        plan = LETTERS.plan(ask(Choice(instructions="Best?", criteria={f"option {i}": None for i in range(n)})))
        text = TOKENIZER.decode(plan.tree.tokens.tolist()).split("Best?\n")[1]
        lines, closing = text.split("\nAnswer with the ")
        found = [line.split(":")[0] for line in lines.split("\n")]
        assert [TOKENIZER.decode([label]) for label in plan.tree.columns.tolist()] == found
        return found, closing.split("<")[0]

    letters = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert listed(26) == (letters, "letter of one option only.")
    assert listed(27) == ([*letters, "AA"], "label of one option only.")
    labels, closing = listed(255)
    assert labels[:29] == [*letters, "AA", "AB", "AC"]
    assert {len(label) for label in labels[26:]} == {2}
    assert len(set(labels)) == 255
    assert closing == "label of one option only."


def toy(*pieces: str, **settings: Any) -> Decider:
    tokenizer = Greedy(*pieces)
    return Decider(tokenizer, TOY, DecideSettings(**settings))  # type: ignore[arg-type]


def test_a_tokenizer_sets_the_limit_on_labels_and_the_error_says_so() -> None:
    decider = toy(*"yesno", "yes", "no", "AA", "AC", "ZZ")
    request = ask(Choice(criteria={str(i): None for i in range(30)}))
    assert refused_field(decider, request) == "questions.q.criteria"
    with pytest.raises(InvalidRequest, match="for 29 options, not for 30"):
        decider.plan(request)
    decider.plan(ask(Choice(criteria={str(i): None for i in range(29)})))
    decider.plan(request.model_copy(update={"x_method": "options"}))


def test_a_tokenizer_without_labels_is_refused_at_load_unless_options_are_asked_for() -> None:
    with pytest.raises(CheckpointError, match='method="options"'):
        toy("yes")
    toy("yes", method="options").plan(ask(NOUL))


def test_a_plain_prompt_ends_in_a_cue_and_its_replies_begin_with_a_space() -> None:
    plain = Frame(head=(), opening="", closing="", tail=(), end=0, trims=False)
    decider = Decider(TOKENIZER, plain, DecideSettings(method="options"))
    question = Choice(instructions="Which?", criteria={"cold": None, "warm": None})
    for method, first in (("letters", [" A", " B"]), ("options", [" cold", " warm"])):
        tree = decider.plan(ask(question, x_method=method)).tree
        prompt = TOKENIZER.decode(tree.tokens[: tree.lengths[0] + tree.lengths[1]].tolist())
        assert prompt.startswith("s\n\nQuestion: Which?")
        assert prompt.endswith("\nAnswer:")
        assert [TOKENIZER.decode([i]) for i in tree.columns[:2].tolist()] == first


def test_settings_by_model() -> None:
    """Its template tells which it is."""
    smollm = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>"
    assert settings_for(smollm, width=576).method == "options"
    assert settings_for(smollm, width=576, method="letters") == DecideSettings(method="letters")
    assert settings_for("<|im_start|>user", width=576).method == "letters"
    assert settings_for(None, width=576, chat=False) == DecideSettings(method="options")


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_settings_refuse_a_temperature_that_is_none(value: float) -> None:
    with pytest.raises(ValueError, match="choice"):
        Temperatures(choice=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_settings_refuse_more_than_the_whole_prior(value: float) -> None:
    with pytest.raises(ValueError, match="score"):
        PriorWeights(score=value)
