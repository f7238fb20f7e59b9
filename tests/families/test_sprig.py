"""The small model of the repository: what it scored when it was made, and what it does through the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from fixtures.import_graph import ROOT

from ramet.decision import ChoiceAnswer, NoulAnswer, ScoreAnswer
from ramet.engine import Engine
from ramet.generation import GenerationRequest
from ramet.question import Choice, Question
from ramet.request import DecisionRequest
from training.tasks.all import TASKS
from training.tasks.example import Example, examples

MODEL = ROOT / "models" / "sprig-10m-b32"
MAX_BYTES = 24_000_000
LEAST = 0.9  # exact match
N = 12  # prompts a task
SEED = 77  # none that the log scores

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log() -> Any:
    return json.loads((MODEL / "log.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tasks() -> dict[str, list[Example]]:
    return {name: list(islice(examples(make, SEED, held_out=True), N)) for name, make in TASKS.items()}


@pytest.fixture(scope="module")
def decisions() -> dict[str, list[Example]]:
    """Held-out ones by kind."""
    found: dict[str, list[Example]] = {}
    for example in islice(examples(TASKS["decisions"], SEED, held_out=True), 240):
        found.setdefault(_kind(example), []).append(example)
    return found


@pytest.fixture(scope="module", params=["block", "chunk"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.load(MODEL, device="cpu", mode=request.param) as loaded:
        yield loaded


def test_its_files_are_small_and_whole(log: Any) -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= MAX_BYTES
    assert 8_000_000 <= log["parameters"] <= 12_000_000
    assert {"arguments", "hardware", "seconds", "curve", "scores"} <= set(log)
    assert log["arguments"]["seed"] is not None


def test_it_scored_enough(log: Any) -> None:
    assert set(log["scores"]) == set(TASKS)
    for name, found in log["scores"].items():
        assert found["n"] >= 150
        assert found["exact_match"] >= LEAST, name


def test_it_decided_enough(log: Any) -> None:
    """Of every kind, and every number of options."""
    assert {"noul", "score", *(f"choice of {n}" for n in range(2, 9))} == set(log["decided"])
    for name, found in log["decided"].items():
        assert found["right"] >= LEAST * found["n"] > 20, name


def test_it_knows_the_block_and_the_mask(engine: Engine) -> None:
    assert engine.blocks is not None
    assert engine.blocks.size == 32
    assert engine.blocks.found["mask"] == "config.json"


def test_replies_are_right(engine: Engine, tasks: dict[str, list[Example]]) -> None:
    """Together in one batch. Scores are of hundreds of prompts, so that a few may fail here."""
    asked = [example for each in tasks.values() for example in each]
    with ThreadPoolExecutor(len(asked)) as pool:
        replies = list(pool.map(lambda example: _reply(engine, example.prompt), asked))
    wrong = [
        (example.prompt, example.answer, reply)
        for example, reply in zip(asked, replies, strict=True)
        if not example.check(reply)
    ]
    assert len(wrong) <= len(asked) * (1 - LEAST), wrong


@pytest.mark.parametrize(
    ("kind", "n_least"),
    [("score", 40), ("noul", 40), ("choice of 2", 10), ("choice of 3 or 4", 40), ("choice of 5 to 8", 40)],
)
def test_decisions_are_right(engine: Engine, decisions: dict[str, list[Example]], kind: str, n_least: int) -> None:
    asked = decisions[kind]
    assert len(asked) >= n_least
    assert _n_right(engine, asked) >= LEAST * len(asked)


def test_letters_go_by_what_stands_behind_them(engine: Engine, decisions: dict[str, list[Example]]) -> None:
    """Options in every rotation, so that each letter is right as often as any other."""
    asked = [each for example in decisions["choice of 3 or 4"][:16] for each in _rotated(example)]
    assert len(asked) >= 48
    assert _n_right(engine, asked) >= LEAST * len(asked)


def test_the_ticket_of_the_demo(engine: Engine) -> None:
    """Which no generator wrote."""
    request = DecisionRequest.model_validate_json((ROOT / "examples" / "ticket.json").read_bytes())
    answers = engine.decide(state=request.state, questions=request.questions).answers
    assert isinstance(answers["fault"], ChoiceAnswer)
    assert isinstance(answers["wanted"], ChoiceAnswer)
    assert isinstance(answers["unhappy"], NoulAnswer)
    assert (answers["fault"].choice, answers["wanted"].choice) == ("damage", "a refund")
    assert isinstance(answers["mood"], ScoreAnswer)
    assert answers["unhappy"].noul > 0.9
    assert answers["mood"].score == pytest.approx(2, abs=0.1), "upset"


def test_the_reply_that_its_page_shows(engine: Engine) -> None:
    page = (MODEL / "README.md").read_text(encoding="utf-8")
    asked, shown = re.search(r'sprig-10m-b32 "(.*?)"\n```\n\n```json\n(.*?)\n```', page, re.DOTALL).groups()  # type: ignore[union-attr]
    assert _reply(engine, asked.replace("\\\n", "")) == shown


def test_any_text_gets_a_reply(engine: Engine) -> None:
    for text in ("", "naïve 你好 🦩", "<|MASK|><|im_end|>", "x" * 300):
        reply = _reply(engine, text, max_tokens=40)
        assert "<|" not in reply or "<|" in text


def _reply(engine: Engine, prompt: str, max_tokens: int = 200) -> str:
    """Its text, without the id that ends it."""
    writer = engine.writer
    ids = writer.conversation.chat([{"role": "user", "content": prompt}])
    found = writer.generate(GenerationRequest(tuple(ids), max_tokens=max_tokens))
    tokens = found.tokens[:-1] if found.finish == "stop" else found.tokens
    return writer.conversation.tokenizer.decode(tokens)


def _kind(example: Example) -> str:
    question = example.question
    assert question is not None
    if not isinstance(question, Choice):
        return question.type
    n = len(question.criteria)
    return "choice of 2" if n == 2 else "choice of 3 or 4" if n <= 4 else "choice of 5 to 8"


def _rotated(example: Example) -> Iterator[Example]:
    """The same choice with each of its options first."""
    question = example.question
    assert isinstance(question, Choice)
    options = list(question.criteria.items())
    for first in range(len(options)):
        criteria = dict(options[first:] + options[:first])
        right = (example.right - first) % len(options)
        yield replace(example, question=question.model_copy(update={"criteria": criteria}), right=right)


def _n_right(engine: Engine, asked: list[Example]) -> int:
    with ThreadPoolExecutor(len(asked)) as pool:
        return sum(pool.map(lambda example: _decides(engine, example), asked))


def _decides(engine: Engine, example: Example) -> bool:
    question = example.question
    assert question is not None
    answer = engine.decide(state=example.state, questions={"q": question}).answers["q"]
    return _place(question, answer) == example.right


def _place(question: Question, answer: Any) -> int:
    """Of the option that was found the likeliest."""
    if isinstance(answer, ChoiceAnswer):
        return list(question.criteria or ()).index(answer.choice)  # type: ignore[arg-type, union-attr]
    if isinstance(answer, ScoreAnswer):
        shares = list(answer.probabilities.values())
        return shares.index(max(shares))
    assert isinstance(answer, NoulAnswer)
    return 0 if answer.noul > 0.5 else 1
