"""DecisionRequest.parse: what is taken, what is refused, and where the fault is said to be."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ramet.decision import NoulAnswer
from ramet.errors import InvalidRequest, Problem
from ramet.problems import MAX_PROBLEMS
from ramet.question import Choice, Noul, Outcomes, Score
from ramet.request import DecisionRequest
from ramet.values import MAX_NESTING, MAX_SEED, MIN_SEED

NOUL = {"type": "noul", "instructions": "Is it late?"}


def body(question: Any = NOUL, **fields: Any) -> dict[str, Any]:
    return {"state": "The parcel is late.", "questions": {"q.1": question}, **fields}


def problems(data: Any) -> tuple[Problem, ...]:
    with pytest.raises(InvalidRequest) as caught:
        DecisionRequest.parse(data)
    return caught.value.problems


def nested(depth: int) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = [value]
    return value


QUESTION_FAULTS: list[tuple[Any, tuple[str | int, ...], str, str]] = [
    (
        {"type": "boolean"},
        ("type",),
        "union_tag_invalid",
        "unknown question type 'boolean'; known: noul, choice, score",
    ),
    ({"instructions": "x"}, ("type",), "union_tag_not_found", "Field required: one of noul, choice, score"),
    (7, (), "model_attributes_type", "should be an object"),
    ({"type": "noul"}, (), "noul_empty", "a noul needs instructions or the description of an outcome"),
    ({"type": "noul", "instructions": " ", "criteria": {"true": ""}}, (), "noul_empty", "a noul needs instructions or"),
    (
        {"type": "noul", "instructions": 5},
        ("instructions",),
        "text_type",
        "should be text, an object or an array, not int",
    ),
    ({**NOUL, "criteria": {"tru": "x"}}, ("criteria", "tru"), "extra_forbidden", "unknown field"),
    ({**NOUL, "instruction": "x"}, ("instruction",), "extra_forbidden", "unknown field"),
    ({"type": "choice"}, ("criteria",), "missing", "Field required"),
    ({"type": "choice", "criteria": None}, ("criteria",), "dict_type", "should be an object"),
    ({"type": "choice", "criteria": {}}, ("criteria",), "too_short", "should have at least 1 entry"),
    (
        {"type": "choice", "criteria": {str(i): None for i in range(256)}},
        ("criteria",),
        "too_long",
        "has 256 options; at most 255 are taken",
    ),
    ({"type": "choice", "criteria": {"": None}}, ("criteria", ""), "name_empty", "a name should not be empty"),
    ({"type": "choice", "criteria": {"a": 1.5}}, ("criteria", "a"), "text_type", "not float"),
    ({"type": "score", "criteria": {"0": "a"}}, ("criteria",), "list_type", "should be an array"),
    ({"type": "score", "criteria": []}, ("criteria",), "too_short", "should have at least 1 entry"),
    ({"type": "score", "criteria": ["x"] * 11}, ("criteria",), "too_long", "should have at most 10 entries"),
    ({"type": "score", "criteria": ["a", None]}, ("criteria", 1), "text_type", "not null"),
    ({**NOUL, "instructions": {"a": [{"b": "\ud83d"}]}}, ("instructions", "a", 0, "b"), "string_unicode", "surrogate"),
    ({**NOUL, "instructions": {"a": float("nan")}}, ("instructions", "a"), "finite_number", "finite"),
    ({**NOUL, "instructions": {1: "a"}}, ("instructions",), "json_key", "keys should be text, not int"),
    ({**NOUL, "instructions": {"a": {1, 2}}}, ("instructions", "a"), "json_type", "JSON value, not set"),
]


@pytest.mark.parametrize(("question", "loc", "code", "message"), QUESTION_FAULTS)
def test_one_fault_of_a_question_is_one_problem_at_its_place(
    question: Any, loc: tuple[str | int, ...], code: str, message: str
) -> None:
    (problem,) = problems(body(question))
    assert problem.loc == ("questions", "q.1", *loc)
    assert problem.code == code
    assert message in problem.message


REQUEST_FAULTS: list[tuple[Any, tuple[str | int, ...], str]] = [
    ([1], (), "should be an object"),
    ({"questions": {"q": NOUL}}, ("state",), "Field required"),
    ({"state": "x"}, ("questions",), "Field required"),
    (body() | {"questions": {}}, ("questions",), "should have at least 1 entry"),
    (body() | {"questions": {"": NOUL}}, ("questions", ""), "a name should not be empty"),
    (body() | {"questions": [NOUL]}, ("questions",), "should be an object"),
    (body(state=None), ("state",), "should be text, an object or an array, not null"),
    (body(state=3), ("state",), "not int"),
    (body(state="cut here \ud83d"), ("state",), "unpaired surrogate"),
    (body(model=""), ("model",), "a name should not be empty"),
    (body(model=None), ("model",), "valid string"),
    (body(x_method="guess"), ("x_method",), "'letters' or 'options'"),
    (body(x_debias=0), ("x_debias",), "greater than or equal to 1"),
    (body(x_debias=True), ("x_debias",), "valid integer"),
    (body(x_debias="2"), ("x_debias",), "valid integer"),
    (body(x_samples=0), ("x_samples",), "greater than or equal to 1"),
    (body(x_samples=33), ("x_samples",), "less than or equal to 32"),
    (body(x_temperature=0), ("x_temperature",), "a number from 0.01 to 100"),
    (body(x_temperature={"box": 1.0}), ("x_temperature",), "keys among noul, choice, score"),
    (body(x_temperature=float("inf")), ("x_temperature",), "a number from 0.01 to 100"),
    (body(x_confidence="mine"), ("x_confidence",), "'typesafe', 'vllm' or 'top'"),
    (body(x_debais=2), ("x_debais",), "did you mean x_debias?"),
    (body(assets={"a": {"type": "image"}}), ("assets",), "holds media"),
    (body(x_seed=True), ("x_seed",), "valid integer"),
    (body(x_seed=1.5), ("x_seed",), "valid integer"),
    (body(x_seed=1 << 63), ("x_seed",), "less than or equal to 9223372036854775807"),
    (body(x_seed=-(1 << 63) - 1), ("x_seed",), "greater than or equal to -9223372036854775808"),
    (body(seed="7"), ("seed",), "valid integer"),
    (body(seed=1, x_seed=2), ("seed",), "says what x_seed says"),
]


@pytest.mark.parametrize(("data", "loc", "message"), REQUEST_FAULTS)
def test_one_fault_of_a_request_is_one_problem_at_its_place(
    data: Any, loc: tuple[str | int, ...], message: str
) -> None:
    (problem,) = problems(data)
    assert problem.loc == loc
    assert message in problem.message


def test_every_fault_is_told() -> None:
    found = problems(body({"type": "choice", "criteria": {"a": 1, "b": 2}}, x_debias=99))
    assert [problem.loc for problem in found] == [
        ("questions", "q.1", "criteria", "a"),
        ("questions", "q.1", "criteria", "b"),
        ("x_debias",),
    ]


def test_a_long_list_of_faults_ends_with_a_word_of_more() -> None:
    found = problems({"state": "x", "questions": {str(i): 7 for i in range(MAX_PROBLEMS + 20)}})
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1].message == "and more problems"


def test_the_error_names_the_first_field_and_how_many_more() -> None:
    with pytest.raises(InvalidRequest, match=r"^state: should be text.* \(and 1 more\)$") as caught:
        DecisionRequest.parse({"state": None, "questions": {}})
    assert caught.value.field == "state"


def test_a_huge_unknown_type_is_not_echoed() -> None:
    (problem,) = problems(body({"type": "x" * 100_000}))
    assert len(problem.message) < 200


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul", "criteria": {"true": "Late"}},
        {"type": "noul", "criteria": {"false": ["In", "time"]}},
        {"type": "noul", "instructions": "x", "criteria": None},
        {"type": "choice", "criteria": {"only": None}},
        {"type": "choice", "criteria": {str(i): None for i in range(255)}},
        {"type": "score", "criteria": ["one"]},
        {"type": "score", "criteria": [{"label": "low"}] * 10},
    ],
)
def test_the_edges_of_what_is_allowed(question: dict[str, Any]) -> None:
    parsed = DecisionRequest.parse(body(question)).questions["q.1"]
    assert parsed.model_dump(exclude_unset=True) == question


@pytest.mark.parametrize("state", ["", {}, [], {"a": None, "b": [1, 2.5, True]}, "\U0001f9a9"])
def test_a_state_comes_through_as_it_is(state: Any) -> None:
    assert DecisionRequest.parse(body(state=state)).state == state


def test_nesting_has_a_limit() -> None:
    assert DecisionRequest.parse(body(state=nested(MAX_NESTING))).state == nested(MAX_NESTING)
    (problem,) = problems(body(state=nested(MAX_NESTING + 1)))
    assert problem.code == "nesting"
    assert problem.loc == ("state", *[0] * 7, "…", *[0] * 7)


def test_names_that_differ_in_normalisation_are_two_options() -> None:
    names = ["caf\u00e9", "cafe\u0301"]
    parsed = DecisionRequest.parse(body({"type": "choice", "criteria": dict.fromkeys(names)})).questions["q.1"]
    assert isinstance(parsed, Choice)
    assert list(parsed.criteria) == names


def test_question_objects_are_taken_as_they_are() -> None:
    score = Score(criteria=["low", "high"])
    assert DecisionRequest.parse(body(score)).questions["q.1"] == score


def test_temperature_as_a_number_and_by_type() -> None:
    assert DecisionRequest.parse(body(x_temperature=2)).x_temperature == 2.0
    by_type = DecisionRequest.parse(body(x_temperature={"noul": 1, "score": 0.5})).x_temperature
    assert by_type == {"noul": 1.0, "score": 0.5}


def test_unknown_fields_are_ignored_and_can_be_named() -> None:
    data = body(user="u", x_trace_id="t", assets=None)
    assert DecisionRequest.parse(data).x_samples == 1
    assert DecisionRequest.ignored(data) == ["user", "x_trace_id", "assets"]


@pytest.mark.parametrize(
    ("fields", "seed"),
    [
        ({}, None),
        ({"seed": 0}, 0),
        ({"x_seed": 0, "seed": 0}, 0),
        ({"x_seed": MIN_SEED}, MIN_SEED),
        ({"seed": MAX_SEED}, MAX_SEED),
    ],
)
def test_the_seed_has_two_names(fields: dict[str, int], seed: int | None) -> None:
    assert DecisionRequest.parse(body(**fields)).noise_seed == seed


def test_constructors_refuse_what_parse_refuses() -> None:
    with pytest.raises(ValidationError, match="a noul needs"):
        Noul(criteria=Outcomes())


def test_an_answer_is_never_without_a_number() -> None:
    with pytest.raises(ValidationError, match="finite"):
        NoulAnswer(noul=float("nan"), x_label_mass=1.0)
