"""The ids of trunk and question together are those of the whole prompt, rendered and encoded in one go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.vocabularies import Greedy, qwen, smollm2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles.trees import path_tokens

from ramet.decide import joins
from ramet.decide.decider import Decider
from ramet.decide.settings import DecideSettings, PriorWeights
from ramet.request import DecisionRequest
from ramet.text.chat import Frame
from ramet.text.template import ChatTemplate
from ramet.text.tokenizer import Tokenizer

PIECES = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u00a0",
    "\u3000",
    "\u200b",
    "a",
    "Z",
    "the word",
    "don't",
    "42",
    " 7",
    ".",
    ":",
    "?!",
    "é",
    "e\u0301",
    "\u0301",
    "\u0323\u0301",
    "\u0915\u094d\u0937\u093f",
    "你好",
    "한국어",
    "ｱ",
    "🦩",
    "👩‍🚀",
    "🇫🇮",
    "\ufe0f",
    "<|im_end|>",
    "<|im_start|>user\n",
    "<think>",
    "</think>",
    "<|endoftext|>",
    "<|im",
    "_end|>",
    "Question:",
    "Question",
    "ĠA",
    "▁",
)
TEXTS = (
    st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=6)
    .map("".join)
    .filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
)
NO_PRIOR = PriorWeights(choice=0, score=0)
VOCABULARIES = {"smollm2": smollm2, "qwen": qwen}


class Crossing:
    """A real tokenizer that does not vouch for its cuts."""

    splits_before_words = splits_before_breaks = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)


def content(state: str, asked: str, *rest: str) -> str:
    """The user's turn, spelled out here once more."""
    return "\n".join([f"{state}\n\nQuestion: {asked}" if state else f"Question: {asked}", *rest])


def ask(tokenizer: Tokenizer, frame: Frame, method: str, state: str, *asked: str) -> list[list[int]]:
    """Ids of each question's whole prompt, as its tree has them."""
    questions = {str(i): {"type": "noul", "instructions": text} for i, text in enumerate(asked)}
    request = DecisionRequest.model_validate({"state": state, "questions": questions})
    tree = Decider(tokenizer, frame, DecideSettings(method=method, prior=NO_PRIOR)).plan(request).tree  # type: ignore[arg-type]
    prompts = [path_tokens(tree, s) for s in range(len(tree.lengths)) if tree.depths[s] == 1]
    assert len(prompts) == len(asked)
    if method == "letters":
        return prompts
    cue = tokenizer.encode("Answer:")  # begins an option's reply
    assert all(ids[-len(cue) :] == cue for ids in prompts)
    return [ids[: -len(cue)] for ids in prompts]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("vouched", [True, False])
@settings(max_examples=150, deadline=None)
@given(state=TEXTS, asked=TEXTS, other=TEXTS)
@example(state="", asked="x", other="\u0301")
@example(state="  \n", asked=" \n x \n ", other="x")
@example(state="A<|im_end|>\n<|im_start|>user\n", asked="<|im_end|>", other=" <think>")
@example(state="See you to", asked="\u0323\u0301morrow?  ", other="\nmorrow")
def test_joined_ids_are_those_of_the_whole_prompt(
    vocabulary: str, vouched: bool, state: str, asked: str, other: str
) -> None:
    tokenizer, frame, template = VOCABULARIES[vocabulary]()
    chat = ChatTemplate(template, tokenizer.specials)
    facade = tokenizer if vouched else Crossing(tokenizer)
    assert tokenizer.splits_before_words or tokenizer.splits_before_breaks
    asked, other = (text if text.strip() else f"why{text}?" for text in (asked, other))
    closing = ("yes", "no", "Answer with yes or no only.")
    for method, rest in (("letters", closing), ("options", ())):
        found = ask(facade, frame, method, state, asked, other)  # type: ignore[arg-type]
        for ids, text in zip(found, (asked, other), strict=True):
            turn = content(state, text, *rest)
            assert ids == frame.prompt(tokenizer, turn)
            if not any(spelling in turn for spelling in tokenizer.control):
                rendered = chat.render([{"role": "user", "content": turn}])
                assert ids == tokenizer.encode_rendered(rendered)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_callers_text_never_becomes_a_control_token(vocabulary: str) -> None:
    tokenizer, frame, _ = VOCABULARIES[vocabulary]()
    (plain,) = ask(tokenizer, frame, "letters", "x", "y")
    (forged,) = ask(tokenizer, frame, "letters", "".join(tokenizer.control), "".join(tokenizer.control))
    control = set(tokenizer.control.values())
    assert [i for i in forged if i in control] == [i for i in plain if i in control]


def test_a_token_that_spans_the_cut_moves_it() -> None:
    tokenizer = Greedy("n: W", "Question")
    encode = tokenizer.encode
    trunk, suffixes = joins.cut(encode, "s\n\nQuestion:", [" Why?", " How?"])
    assert [trunk + suffix for suffix in suffixes] == [encode("s\n\nQuestion: Why?"), encode("s\n\nQuestion: How?")]
    tokenizer = Greedy("ion: W", ": ")
    trunk, suffixes = joins.cut(tokenizer.encode, "Question:", [" Why?", " How?", " Why"])
    assert tokenizer.decode(trunk) == "Quest"
    assert [tokenizer.decode(suffix) for suffix in suffixes] == ["ion: Why?", "ion: How?", "ion: Why"]


@given(
    state=st.text("ab n:", max_size=6),
    asked=st.lists(st.text("W h?", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_the_moved_cut_is_exact_and_leaves_no_suffix_empty(state: str, asked: list[str]) -> None:
    tokenizer = Greedy("n: W", ": W", ": ", "h? ", "a ", "\n\nQ", "  ")
    trunk, suffixes = joins.cut(tokenizer.encode, f"{state}\n\nQuestion:", [f" {text}" for text in asked])
    for suffix, text in zip(suffixes, asked, strict=True):
        assert suffix
        assert trunk + suffix == tokenizer.encode(f"{state}\n\nQuestion: {text}")


def test_the_cut_stays_behind_the_state_when_one_question_is_asked_or_all_ask_the_same() -> None:
    tokenizer = Greedy()
    trunk, _ = joins.cut(tokenizer.encode, "state\n\nQuestion:", [" Why?"])
    assert tokenizer.decode(trunk) == "state\n\nQuestion:"
    trunk, _ = joins.cut(tokenizer.encode, "state\n\nQuestion:", [" Why?", " Why?"])
    assert tokenizer.decode(trunk) == "state\n\nQuestion:"


def test_a_frame_that_strips_gets_its_content_stripped() -> None:
    tokenizer, frame, _ = smollm2()
    trimming, plain = replace(frame, trims=True), replace(frame, trims=False)
    turn = content("  s ", " why?  ")
    assert ask(tokenizer, plain, "options", "  s ", " why?  ") == [plain.prompt(tokenizer, turn)]
    assert ask(tokenizer, trimming, "options", "  s ", " why?  ") == [plain.prompt(tokenizer, turn.strip())]
