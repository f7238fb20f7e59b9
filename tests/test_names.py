"""Names of fields that are not ours: which are refused with a hint, and which are tolerated."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.errors import InvalidRequest
from ramet.names import ELSEWHERE, nearest
from ramet.request import DecisionRequest

BODY = {"state": "The parcel is late.", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}


EXTRAS = [name for name in DecisionRequest.model_fields if name.startswith("x_")]


def fault(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        DecisionRequest.parse(BODY | fields)
    (problem,) = caught.value.problems
    assert problem.loc == tuple(fields)
    assert problem.code == "unknown_field"
    return problem.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((name.removeprefix("x_"), name) for name in EXTRAS if name != "x_seed"),
        *((f"x_{name}", name) for name in ("model", "state", "joint", "cache_salt")),
        ("Cache_salt", "cache_salt"), ("cacheSalt", "cache_salt"), ("cache-salt", "cache_salt"),
        ("X-Steps", "x_steps"), ("xSteps", "x_steps"), ("x_sample", "x_samples"), ("step", "x_steps"),
        ("smaples", "x_samples"), ("tempurature", "x_temperature"), ("Joint", "joint"), ("question", "questions"),
        ("x_debais", "x_debias"), ("seeds", "seed"), ("Seed", "x_seed"), ("x_methode", "x_method"),
    ],
)  # fmt: skip
def test_what_is_near_a_field_of_ours_is_refused(name: str, meant: str) -> None:
    for value in (2, 0, False, "", [], "x"):
        assert fault(**{name: value}) in {f"unknown field; did you mean {each}?" for each in (meant, f"x_{meant}")}
    assert DecisionRequest.parse(BODY | {name: None}) == DecisionRequest.parse(BODY)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_other_servers_have_on_the_route_is_refused_with_a_remedy(name: str) -> None:
    own = ELSEWHERE[name]
    for value in ("x", 7, ["x"], {"x": 1}, True):
        assert fault(**{name: value}) == own.why
        assert fault(**{name.upper(): value}) == own.why
    for value in (None, *own.neutral):
        assert DecisionRequest.parse(BODY | {name: value}) == DecisionRequest.parse(BODY)
    assert len(own.why) > 25


@pytest.mark.parametrize(
    "name",
    ["x_trace_id", "x_nonce", "user", "metadata", "request_id", "id", "tags", "stream", "max_tokens",
     "safety_identifier", "x_", "", "_", "s", "prompt_cache_key", "store", "\u00df", "x" * 10_000, "steps" * 1000],
)  # fmt: skip
def test_what_else_is_unknown_is_tolerated_and_named(name: str) -> None:
    assert DecisionRequest.parse(BODY | {name: 1}) == DecisionRequest.parse(BODY)
    assert DecisionRequest.ignored(BODY | {name: 1}) == [name]


def test_every_misnamed_field_is_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecisionRequest.parse(BODY | {"samples": 2, "images": [1], "priority": 1, "user": "u"})
    assert [problem.loc for problem in caught.value.problems] == [("samples",), ("images",), ("priority",)]


def test_the_same_name_wins_over_a_similar_one() -> None:
    assert nearest("X-STEP", ["steps", "x_step"]) == "x_step"
    assert nearest("else", ["steps"]) is None
