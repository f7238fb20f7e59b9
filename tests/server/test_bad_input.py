"""Bad and awkward requests over a socket: each with its status, its place and its message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fixtures.live_server import LiveServer

NOUL = {"type": "noul", "instructions": "Is it late?"}
UNNORMALISED = ["caf\u00e9", "cafe\u0301", "\u212b", "\u00c5"]


def post(server: LiveServer, body: bytes) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return httpx2.post(f"{server.url}/v1/systemone", content=body, headers=headers)


def request(questions: Any, state: Any = "The parcel is late.", **fields: Any) -> bytes:
    return json.dumps({"model": "jev-latest", "state": state, "questions": questions, **fields}).encode()


def choice(n_options: int) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "criteria": {f"option {i}": None for i in range(n_options)}}


@pytest.fixture(autouse=True)
def served_afterwards(live: LiveServer) -> Iterator[None]:
    """After whatever was sent, an ordinary request is served."""
    yield
    reply = post(live, request({"q": NOUL, "c": choice(2)}))
    assert (reply.status_code, list(reply.json()["answers"])) == (200, ["q", "c"])


INVALID: dict[str, tuple[bytes, list[str | int], str]] = {
    "empty questions": (request({}), ["questions"], "should have at least 1 entry"),
    "256 options": (request({"q": choice(256)}), ["questions", "q", "criteria"], "has 256 options; at most 255"),
    "11 levels": (
        request({"q": {"type": "score", "criteria": ["level"] * 11}}),
        ["questions", "q", "criteria"],
        "should have at most 10 entries",
    ),
    "null criterion": (
        request({"q": {"type": "score", "criteria": ["low", None]}}),
        ["questions", "q", "criteria", 1],
        "should be text, an object or an array, not null",
    ),
    "null state": (request({"q": NOUL}, state=None), ["state"], "not null"),
    "unknown type": (
        request({"q": {"type": "boolean"}}),
        ["questions", "q", "type"],
        "unknown question type 'boolean'; known: noul, choice, score",
    ),
    "empty option name": (
        request({"q": {"type": "choice", "criteria": {"": "x"}}}),
        ["questions", "q", "criteria", ""],
        "a name should not be empty",
    ),
    "empty noul": (request({"q": {"type": "noul"}}), ["questions", "q"], "a noul needs instructions"),
    "misspelt extra": (request({"q": NOUL}, x_debais=2), ["x_debais"], "did you mean x_debias?"),
    "image": (request({"q": NOUL}, assets={"i": {"type": "image"}}), ["assets"], "holds media"),
    "not JSON": (b'{"model": ', [10], "the body is not JSON"),
    "a name twice": (b'{"state": "", "state": "", "questions": {}}', [], "the name 'state' twice"),
    "a number beyond a double": (
        b'{"state": {"n": [1e400]}, "questions": {"q": {"type": "noul", "instructions": "x"}}}',
        ["state", "n", 0],
        "should be a finite number",
    ),
    "half an emoji in the state": (
        b'{"state": "cut here \\ud83d", "questions": {"q": {"type": "noul", "instructions": "x"}}}',
        ["state"],
        "unpaired surrogate",
    ),
    "half an emoji in an option": (
        b'{"state": "", "questions": {"q": {"type": "choice", "criteria": {"\\ud800": null, "b": 3}}}}',
        ["questions", "q", "criteria", "\ufffd\ufffd\ufffd"],
        "unpaired surrogate",
    ),
    "half an emoji in a question's name": (
        b'{"state": "", "questions": {"q\\ude00": {"type": "noul", "instructions": "x"}}}',
        ["questions", "q\ufffd\ufffd\ufffd"],
        "unpaired surrogate",
    ),
    "half an emoji in a field's name": (
        b'{"state": "", "questions": {"q": {"type": "noul", "instructions": "x"}}, "x_debia\\ud83d": 1}',
        ["x_debia\ufffd\ufffd\ufffd"],
        "did you mean x_debias?",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid(live: LiveServer, name: str) -> None:
    body, loc, message = INVALID[name]
    reply = post(live, body)
    assert reply.status_code == 422
    problem = json.loads(reply.content.decode("utf-8"))["detail"][0]
    assert problem["loc"] == ["body", *loc]
    assert message in problem["msg"]
    assert problem["type"]


MALFORMED: dict[str, tuple[bytes, str]] = {
    "invalid UTF-8": (b'{"state": "\xff"}', "the body is not UTF-8"),
    "NaN": (b'{"state": [NaN]}', "NaN is not JSON"),
    "Infinity": (b'{"state": [Infinity]}', "Infinity is not JSON"),
    "an endless integer": (b'{"state": [' + b"9" * 5000 + b"]}", "more than 1000 digits"),
    "nesting a thousand deep": (b'{"state": ' + b"[" * 1000 + b"]" * 1000 + b"}", "nested more than 100 deep"),
    "nesting a million deep": (b'{"state": ' + b"[" * 1_000_000, "more than 393216 values"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(live: LiveServer, name: str) -> None:
    body, message = MALFORMED[name]
    reply = post(live, body)
    assert reply.status_code == 400
    assert reply.json()["detail"]["error_type"] == "malformed_body"
    assert message in reply.json()["detail"]["message"]


def test_three_megabytes_of_state_are_too_long_and_never_cut(live: LiveServer) -> None:
    reply = post(live, request({"q": NOUL}, state="late " * 600_000))
    assert reply.status_code == 413
    assert reply.json()["detail"]["error_type"] == "max_tokens_exceeded"
    assert "tokens" in reply.json()["detail"]["message"]


@pytest.mark.parametrize("state", ["", {}, []])
def test_an_empty_state_is_answered(live: LiveServer, state: Any) -> None:
    reply = post(live, request({"q": NOUL}, state=state))
    assert reply.status_code == 200
    assert 0 <= reply.json()["answers"]["q"]["noul"] <= 1


def test_the_most_options_and_levels_are_answered(live: LiveServer) -> None:
    score = {"type": "score", "instructions": "How late?", "criteria": [f"{i} days" for i in range(10)]}
    answers = post(live, request({"c": choice(255), "s": score})).json()["answers"]
    assert len(answers["c"]["probabilities"]) == 255
    assert list(answers["s"]["legend"]) == [str(i) for i in range(10)]


def test_option_names_come_back_byte_for_byte(live: LiveServer) -> None:
    names = [*UNNORMALISED, " a ", "\U0001f9a9"]
    question = {"type": "choice", "instructions": "Where?", "criteria": dict.fromkeys(names)}
    reply = post(live, request({"w\u00f6 \U0001f3af": question}))
    assert list(reply.json()["answers"]["w\u00f6 \U0001f3af"]["probabilities"]) == names


def test_a_whole_pair_of_escapes_is_the_character(live: LiveServer) -> None:
    reply = post(live, b'{"state": "", "questions": {"q": {"type": "choice", "criteria": {"\\ud83e\\udda9": null}}}}')
    assert reply.json()["answers"]["q"]["choice"] == "\U0001f9a9"
    assert "\U0001f9a9".encode() in reply.content


def test_unknown_fields_are_ignored_and_named(live: LiveServer) -> None:
    reply = post(live, request({"q": NOUL}, user="u", **{"x_tr\u00e4ce,": "t"}))
    assert reply.status_code == 200
    assert reply.headers["x-ramet-ignored"] == "user, x_tr%C3%A4ce%2C"
    many = post(live, request({"q": NOUL}, **{f"field{i}": i for i in range(200)}))
    assert many.status_code == 200
    assert many.headers["x-ramet-ignored"].endswith("field19, and 180 more")
    assert post(live, request({"q": NOUL}, **{f"field{i}": i for i in range(300)})).status_code == 422


def test_names_in_the_query_are_told_apart_as_those_in_the_body(live: LiveServer) -> None:
    def asked(query: str) -> httpx2.Response:
        return httpx2.post(f"{live.url}/v1/systemone?{query}", content=request({"q": NOUL}))

    assert asked("user=u&x_trace=1").headers["x-ramet-ignored"] == "user, x_trace"
    for query, why in (("debias=4", "did you mean x_debias?"), ("x_debias=4", "in the body"), ("debug=1", "debugging")):
        reply = asked(query)
        assert reply.status_code == 422, query
        (problem,) = reply.json()["detail"]
        assert problem["loc"][-1] == query.partition("=")[0]
        assert why in problem["msg"]


@pytest.mark.parametrize("name", ["%ED%A0%BD", "%FF", "a%00b", "%F0%9F%A6%A9"])
def test_a_name_in_an_address_that_is_no_unicode(live: LiveServer, name: str) -> None:
    reply = httpx2.get(f"{live.url}/v1/models/{name}")
    assert reply.status_code == 404
    assert json.loads(reply.content.decode("utf-8"))["detail"]["error_type"] == "unknown_model"


def test_a_model_of_half_an_emoji(live: LiveServer) -> None:
    reply = post(live, b'{"model": "\\ud83d", "state": "", "questions": {"q": {"type": "noul", "instructions": "x"}}}')
    assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["body", "model"])
