"""The small model of the repository: what it scored when it was made, and what it does through the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from import_graph import ROOT

from ramet.bench.tasks.all import TASKS
from ramet.bench.tasks.example import Example, examples
from ramet.engine import Engine
from ramet.generation import GenerationRequest
from ramet.request import ChoiceAnswer, NoulAnswer, Question, ScoreAnswer

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
    written = {name: make for name, make in TASKS.items() if name != "decisions"}
    return {name: list(islice(examples(make, SEED, held_out=True), N)) for name, make in written.items()}


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
        assert found["exact_match"] >= LEAST or name == "decisions", name


def test_it_knows_the_block_and_the_mask(engine: Engine) -> None:
    assert engine.masking is not None
    assert engine.masking.size == 32
    assert engine.masking.found["mask"] == "config.json"


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


@pytest.mark.parametrize(("kind", "least"), [("score", 0.95), ("noul", 0.75)])
def test_decisions_are_right(engine: Engine, kind: str, least: float) -> None:
    """Levels and yes or no. Letters of a choice it has not learnt to find, which its README says."""
    drawn = islice(examples(TASKS["decisions"], SEED, held_out=True), 240)
    asked = [example for example in drawn if example.question is not None and example.question.type == kind]
    assert len(asked) >= 30
    with ThreadPoolExecutor(len(asked)) as pool:
        right = sum(pool.map(lambda example: _decides(engine, example), asked))
    assert right >= least * len(asked)


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
