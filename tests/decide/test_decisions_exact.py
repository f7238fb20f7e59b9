"""Engine.decide, from text to probabilities, against its plan run by transformers path by path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fixtures import tiny
from fixtures.tiny_engine import MAX_POSITIONS, checkpoint, expected, tiny_engine
from oracles.answers import assert_close, probabilities
from transformers import PreTrainedModel

from ramet.engine import Engine
from ramet.engine.settings import PAGE_SIZE
from ramet.request import DecisionRequest

STATE = "The parcel is late, it was to be here on Monday: A yes, B no. é 你好 🦩 "
QUESTIONS: dict[str, Any] = {
    "noul": {"type": "noul", "instructions": "Is it late?"},
    "described": {"type": "noul", "criteria": {"true": "it is late", "false": "it is in time"}},
    "half": {"type": "noul", "instructions": "So?", "criteria": {"true": "all is well"}},
    "choice": {"type": "choice", "instructions": "Where is it?",
               "criteria": {"on the way": None, "here": "It has come.", "lost for ever, at sea": {"since": [1, None]}}},
    "prefixes": {"type": "choice", "criteria": dict.fromkeys(["all", "all, on Friday", "all, on Friday, in cash"])},
    "many": {"type": "choice", "criteria": {f"shelf {i}": None for i in range(31)}},
    "one": {"type": "choice", "criteria": {"only": None}},
    "score": {"type": "score", "instructions": "How late?", "criteria": ["not", {"days": 1}, "a week", "for ever"]},
}  # fmt: skip
EXTRAS: list[dict[str, Any]] = [
    {},
    {"x_debias": 3, "x_temperature": {"choice": 0.5, "noul": 2.0}, "x_confidence": "vllm"},
    {"x_debias": 16, "x_temperature": 3.0},
]
ROUNDS = {"whole": 4096, "in chunks": 96}


def request(state: Any = STATE, *names: str, **extras: Any) -> DecisionRequest:
    asked = {name: QUESTIONS[name] for name in names or QUESTIONS}
    return DecisionRequest.parse({"state": state, "questions": asked, **extras})


@pytest.fixture(scope="module", params=itertools.product(["llama", "qwen3"], ROUNDS), ids="-".join)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    model_type, rounds = request.param
    with tiny_engine(model_type, max_round_tokens=ROUNDS[rounds]) as made:
        yield made


@pytest.fixture
def model(engine: Engine) -> PreTrainedModel:
    return tiny.model(checkpoint(engine.name.removeprefix("tiny-")))


@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("method", ["letters", "options"])
def test_every_type_of_question(engine: Engine, model: PreTrainedModel, method: str, extras: dict[str, Any]) -> None:
    if method == "options":
        extras = {name: value for name, value in extras.items() if name != "x_debias"}
    asked = request(x_method=method, **extras)
    decision = engine.decide(asked)
    wanted = expected(engine, model, asked)
    assert_close(decision.answers, wanted)
    for name, answer in wanted.items():
        assert decision[name].x_label_mass == pytest.approx(answer.x_label_mass, rel=1e-3)
    assert max(abs(np.diff(probabilities(wanted)["choice"]))) > 0.01  # the model tells options apart, so the test can


@pytest.mark.parametrize("method", ["letters", "options"])
def test_a_long_state_and_what_begins_like_it(engine: Engine, model: PreTrainedModel, method: str) -> None:
    """Cold, resumed whole, resumed in part, and gone on with: always the answer of the whole prompt."""
    words = [f"{method} {i}: {STATE}" for i in range(8)]
    states = ["".join(words[:n]) for n in (8, 8, 5, 8, 1)] + ["".join(words[:7]) + "the end"]
    hits = []
    for state in states:
        asked = request(state, "noul", "choice", "score", x_method=method, x_prior=0.0)
        decision = engine.decide(asked)
        assert_close(decision.answers, expected(engine, model, asked))
        hits.append(decision.usage.x_cached_tokens)
        assert decision.usage.x_cached_tokens < decision.usage.input_tokens
    assert hits[0] == 0
    assert all(hits[1:])


def test_many_at_once(engine: Engine, model: PreTrainedModel) -> None:
    """Other requests in the same rounds, of both methods and of all lengths, change nothing."""
    rng = np.random.default_rng(1)
    asked = []
    for i in range(16):
        names = rng.choice([*QUESTIONS], size=int(rng.integers(1, 4)), replace=False).tolist()
        state = STATE * int(rng.integers(0, 6)) + str(i % 5)
        readout = {"x_method": "options"} if i % 2 else {"x_method": "letters", "x_debias": 1 + i % 3}
        asked.append(request(state, *names, **readout))
    with ThreadPoolExecutor(16) as pool:
        decisions = list(pool.map(engine.decide, asked))
    for one, decision in zip(asked, decisions, strict=True):
        assert_close(decision.answers, expected(engine, model, one))


def test_nothing_is_left_open(engine: Engine) -> None:
    stats = engine.stats()
    assert stats["open_requests"] == 0
    assert stats["pages_free"] + stats["pages_indexed"] == stats["pages"]
    assert engine.shape.max_positions == MAX_POSITIONS


def state_of(engine: Engine, n_rows: int, method: str) -> str:
    """A state whose rows and those before it are `n_rows`."""
    for n in range(n_rows):
        state = "." * n  # a token each
        if engine.decider.plan(request(state, "noul", x_method=method)).trunk == n_rows:
            return state
    raise AssertionError(f"no state has {n_rows} rows")


@pytest.mark.parametrize("n_rows", [3 * PAGE_SIZE, 3 * PAGE_SIZE + 1, 3 * PAGE_SIZE - 1, PAGE_SIZE])
@pytest.mark.parametrize("method", ["letters", "options"])
def test_the_very_same_request_again(engine: Engine, model: PreTrainedModel, method: str, n_rows: int) -> None:
    """D9: the whole state is kept, and still there is something left to compute; then its own beginning, and more."""
    state = state_of(engine, n_rows, method)
    for longer in (state, state, state, state[:-1], state + ".", state):
        asked = request(longer, "noul", "prefixes", x_method=method)
        decision = engine.decide(asked)
        assert decision.usage.x_cached_tokens < decision.usage.input_tokens
        assert_close(decision.answers, expected(engine, model, asked))
    again = [engine.decide(request(state, "noul", "prefixes", x_method=method)) for _ in range(3)]
    assert again[0].usage.x_cached_tokens >= PAGE_SIZE
    assert again[0].answers == again[1].answers == again[2].answers  # to the last bit
