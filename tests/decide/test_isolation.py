"""A question's answer is its own: nothing that is asked beside it, or was asked before, changes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.tiny_engine import MAKERS, MAX_POSITIONS, tiny_engine
from oracles.answers import assert_close

from ramet.engine import Engine
from ramet.engine.settings import PAGE_SIZE
from ramet.request import DecisionRequest

STATE = "the state of the system and the answer to it, that is he was for in on " * 9
ASKED: dict[str, Any] = {
    "noul": {"type": "noul", "instructions": "Is it late?"},
    "choice": {"type": "choice", "instructions": "Where is it?", "criteria": dict.fromkeys(["here", "lost", "at sea"])},
    "score": {"type": "score", "instructions": "How late?", "criteria": ["not", "a day", "a week"]},
}
OTHER: dict[str, Any] = {
    "noul": {"type": "noul", "instructions": "Was the answer, after all that was said, no? " * 3},
    "choice": {"type": "choice", "instructions": "Who?", "criteria": dict.fromkeys(["a", "b", "c", "d", "e"])},
    "score": {"type": "score", "criteria": ["yes", "no"]},
}


def load(family: str, **settings: Any) -> Engine:
    sizes = {"head_dim": 32} if family == "qwen3" else {}
    source = MAKERS[family](max_position_embeddings=MAX_POSITIONS, **sizes)
    return tiny_engine(family, source, method="letters", **settings)


@pytest.fixture(scope="module", params=sorted(MAKERS))
def invariant(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with load(request.param, batch_invariant=True, checkpoint_spacing=64) as engine:
        yield engine


def answers(engine: Engine, state: str, questions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return engine.decide(state=state, questions=questions, **fields).model_dump(mode="json")["answers"]  # type: ignore[no-any-return]


def test_another_question_beside_it_changes_no_bit(invariant: Engine) -> None:
    """Each in turn replaced by another; the rest of the answers stay as they are."""
    before = answers(invariant, STATE, ASKED)
    for name in ASKED:
        after = answers(invariant, STATE, ASKED | {name: OTHER[name]})
        assert after[name] != before[name]
        assert {n: a for n, a in after.items() if n != name} == {n: a for n, a in before.items() if n != name}
    assert answers(invariant, STATE, dict(reversed(ASKED.items()))) == before


@pytest.mark.parametrize("family", sorted(MAKERS))
def test_another_question_beside_it_changes_nothing_beyond_rounding(family: str) -> None:
    with load(family) as engine:
        before = answers(engine, STATE, ASKED)
        for name in ASKED:
            after = answers(engine, STATE, ASKED | {name: OTHER[name]}, cache_salt=name)
            rest = [n for n in ASKED if n != name]
            assert_close({n: after[n] for n in rest}, {n: before[n] for n in rest}, atol=1e-4)


def states_by_length(engine: Engine, remainder: int) -> str:
    """A state whose trunk's length leaves this remainder by the page size."""
    for n in range(len(STATE), len(STATE) + 4000):
        state = (STATE * 8)[:n]
        request = DecisionRequest.parse({"state": state, "questions": ASKED})
        if engine.decider.plan(request).trunk % PAGE_SIZE == remainder:
            return state
    raise AssertionError("no such state")


@pytest.mark.parametrize("remainder", [0, 1, PAGE_SIZE - 1])
def test_the_same_request_again_its_beginning_and_one_more_word(invariant: Engine, remainder: int) -> None:
    """D9: bit-equal each time; the last rows at least are computed again, and some tokens are found."""
    state = states_by_length(invariant, remainder)
    salt = f"again {remainder}"
    fresh = answers(invariant, state, ASKED, cache_salt=f"fresh {salt}")
    for n in range(3):
        found = invariant.decide(state=state, questions=ASKED, cache_salt=salt)
        assert found.model_dump(mode="json")["answers"] == fresh
        assert found.usage.x_cached_tokens < found.usage.input_tokens
        assert (found.usage.x_cached_tokens > 0) == (n > 0)
    for near in (state[: len(state) // 2], state + " yes"):
        alone = answers(invariant, near, ASKED, cache_salt=f"fresh {salt} {len(near)}")
        found = invariant.decide(state=near, questions=ASKED, cache_salt=salt)
        assert found.usage.x_cached_tokens > 0
        assert found.model_dump(mode="json")["answers"] == alone
