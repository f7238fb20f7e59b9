"""A real model: SmolLM2 as we load it and run it, against transformers' own GGUF loader and model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_engine import expected
from oracles.answers import assert_close
from oracles.trees import evaluate
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramet.decision import ChoiceAnswer
from ramet.engine import Engine
from ramet.errors import InvalidRequest
from ramet.request import DecisionRequest
from ramet.tree import FloatArray, Read, Segment, Tree
from ramet.weights.locate import locate

pytestmark = pytest.mark.slow

PROMPTS = (
    "What is the capital of France?", "Is water wet? Answer with yes or no only.", "2 + 2 =", "Say hello in Finnish.",
    "Name a colour.", "Der Zug kommt spät. Warum?", "How many legs has a spider?", "def fibonacci(n):",
    "The parcel was torn and the lamp inside is in pieces. What does the customer want?", "你好", "🦩 is a",
    "Translate to French: The cat sleeps on the chair. " * 12,
)  # fmt: skip
REQUESTS: list[dict[str, Any]] = [
    {
        "state": "I was charged twice, and nobody answers my mails. I want my money back.",
        "questions": {
            "money": {"type": "noul", "instructions": "Does the customer want money back?"},
            "topic": {"type": "choice", "instructions": "What is it about?",
                      "criteria": {"billing": "A wrong charge", "parcel": "A late parcel", "other": None}},
            "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "annoyed", "furious"]},
        },
    },
    {
        "state": "", "x_method": "letters", "x_debias": 3,
        "questions": {
            "wet": {"type": "noul", "instructions": "Is water wet?"},
            "city": {"type": "choice", "instructions": "In which city does Italy's parliament sit?",
                     "criteria": {"Rome": None, "Milan": None, "Turin": None}},
        },
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> PreTrainedModel:
    path = locate("smollm2").path
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ours() -> Iterator[Engine]:
    with Engine.load("smollm2", device="cpu", dtype="float32", cache_bytes=1 << 26) as engine:
        yield engine


@pytest.fixture(scope="module")
def trees(ours: Engine) -> list[Tree]:
    """Each prompt, and the whole distribution of what follows it."""
    tokenizer, frame = ours.decider._tokenizer, ours.decider._frame
    whole = [Read(np.arange(ours.shape.vocab_size))]
    return [Tree.of([Segment(frame.prompt(tokenizer, prompt), reads=whole)]) for prompt in PROMPTS]


def of_theirs(model: PreTrainedModel, trees: list[Tree]) -> list[FloatArray]:
    return [evaluate(model, tree).logprobs(0) for tree in trees]


def of_ours(engine: Engine, trees: list[Tree]) -> list[FloatArray]:
    return [future.result().logprobs(0) for future in [engine.submit(tree) for tree in trees]]


def test_float32(ours: Engine, theirs: PreTrainedModel, trees: list[Tree]) -> None:
    for found, wanted in zip(of_ours(ours, trees), of_theirs(theirs, trees), strict=True):
        assert found.argsort()[-3:].tolist() == wanted.argsort()[-3:].tolist()
        np.testing.assert_allclose(np.exp(found), np.exp(wanted), rtol=0, atol=1e-4)
        assert np.exp(wanted).max() > 0.05


@pytest.mark.parametrize("asked", REQUESTS, ids=["options", "letters"])
def test_decisions_in_float32(ours: Engine, theirs: PreTrainedModel, asked: dict[str, Any]) -> None:
    request = DecisionRequest.parse(asked)
    assert_close(ours.decide(request).answers, expected(ours, theirs, request), atol=1e-4)


def test_bfloat16(theirs: PreTrainedModel, trees: list[Tree]) -> None:
    """Within 0.03 of float32, and no farther from it than transformers' own bfloat16."""
    exact, rough = of_theirs(theirs, trees), of_theirs(copy.deepcopy(theirs).to(torch.bfloat16), trees)
    with Engine.load("smollm2", device="cpu", dtype="bfloat16", cache_bytes=1 << 26) as engine:
        found = of_ours(engine, trees)
    for wanted, got in zip(exact, found, strict=True):
        np.testing.assert_allclose(np.exp(got), np.exp(wanted), rtol=0, atol=0.03)
        top, second = np.sort(np.exp(wanted))[[-1, -2]]
        assert int(got.argmax()) == int(wanted.argmax()) or top - second < 0.03
    assert distance(found, exact) < distance(rough, exact)


SEAMS = (
    ("See you to", ["day", "morrow"]), ("Colour: ", ["blue", "green"]), ("Answer: C", ["at", "ircle of friends"]),
)  # fmt: skip


@pytest.mark.parametrize(("state", "names"), SEAMS)
def test_a_token_that_would_span_the_join(ours: Engine, theirs: PreTrainedModel, state: str, names: list[str]) -> None:
    """D1: an option is encoded by itself, whatever stands before it, and every one has tokens of its own."""
    tokenizer = ours.decider._tokenizer
    assert any(tokenizer.encode(state + name) != tokenizer.encode(state) + tokenizer.encode(name) for name in names)
    asked = {"type": "choice", "instructions": state, "criteria": dict.fromkeys(names)}
    request = DecisionRequest.parse({"state": state, "questions": {"q": asked}})
    answer = ours.decide(request)["q"]
    assert_close({"q": answer}, expected(ours, theirs, request), atol=1e-4)
    assert isinstance(answer, ChoiceAnswer)
    assert list(answer.probabilities) == names
    assert all(0 < p < 1 for p in answer.probabilities.values())
    ids = ours.decider.plan(request).tree.tokens.tolist()
    assert all(spelled(tokenizer.encode(f" {name}"), ids) for name in names if len(tokenizer.encode(f" {name}")) > 1)
    with pytest.raises(InvalidRequest, match=r"questions\.q\.criteria"):
        ours.decide(state=state, questions={"q": asked | {"criteria": {names[0]: None, "": None}}})


@pytest.mark.parametrize(("state", "instructions", "names"), [
    ('Which refund was agreed on the phone? "Everything, but only on Friday."', "Which refund was agreed?",
     ["all", "all, on Friday", "all, on Friday, in cash"]),
    ("", "In which city does Italy's parliament sit?", ["Rome", "Pneumonoultramicroscopicsilicovolcanoconiosis"]),
])  # fmt: skip
def test_options_that_are_prefixes_of_one_another_or_of_very_different_length(
    ours: Engine, theirs: PreTrainedModel, state: str, instructions: str, names: list[str]
) -> None:
    """D2: the numbers are those of a pass an option; their order in the request means nothing; none wins by being
    short, or by having many forced tokens."""
    found = []
    for order in (names, names[::-1]):
        asked = {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(order)}
        answer = ours.decide(state=state, questions={"q": asked})["q"]
        assert isinstance(answer, ChoiceAnswer)
        assert list(answer.probabilities) == order
        found.append(answer)
    request = DecisionRequest.parse({"state": state, "questions": {"q": asked}})
    assert_close({"q": found[1]}, expected(ours, theirs, request), atol=1e-4)
    assert found[0].probabilities == pytest.approx(found[1].probabilities, abs=1e-5)
    assert found[0].choice not in ("all", "Pneumonoultramicroscopicsilicovolcanoconiosis")


def spelled(part: list[int], ids: list[int]) -> bool:
    """Whether the last ids but one of a reply stand in a row: its last one is only read."""
    text = ",".join(map(str, ids))
    return ",".join(map(str, part[:-1])) in text


def distance(found: list[FloatArray], exact: list[FloatArray]) -> float:
    """Root mean square over the prompts of the error of the ten likeliest tokens' log-probabilities."""
    errors = [(a - b)[b.argsort()[-10:]] for a, b in zip(found, exact, strict=True)]
    return float(np.sqrt(np.mean(np.square(errors))))
