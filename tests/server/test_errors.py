"""Errors: one table from Ramet's exceptions to statuses, and bodies that are always JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine

from ramet import errors
from ramet.errors import (
    CheckpointError,
    EngineFault,
    InvalidRequest,
    Overloaded,
    Problem,
    RametError,
    RequestTooLong,
)
from ramet.server.errors import STATUSES, WrongMethod, status_of
from ramet.server.openai import errors as openai_errors
from ramet.server.rendering import render

QUESTION = {"type": "noul", "instructions": "Is it late?"}


def subclasses(cls: type[RametError]) -> Iterator[type[RametError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def ask(url: str) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/systemone", json={"state": "x", "questions": {"q": QUESTION}})


def test_every_error_with_a_status_in_the_tree_has_it_in_the_table() -> None:
    drawn = {
        words[0]: int(words[1])
        for line in (errors.__doc__ or "").splitlines()
        if len(words := line.strip(" │├└─").split()) > 1 and words[1].isdigit()
    }
    assert len(drawn) >= 6
    named = {cls.__name__: row.status for cls, row in STATUSES.items()}
    assert drawn.items() <= named.items()


def test_every_error_has_a_status_of_an_error() -> None:
    for cls in subclasses(RametError):
        if cls.__module__.startswith("ramet.cli"):  # no server raises those
            continue
        assert 400 <= status_of(cls("what went wrong")).status < 600


def test_a_class_without_a_row_takes_that_of_its_base() -> None:
    class Narrower(RequestTooLong):
        pass

    assert status_of(Narrower("x")) == STATUSES[RequestTooLong]
    assert status_of(CheckpointError("x")) == STATUSES[RametError]


@pytest.mark.parametrize(
    ("field", "loc"),
    [
        (None, []),
        ("state", ["state"]),
        ("questions", ["questions"]),
        ("questions.a", ["questions", "a"]),
        ("questions.a.b.criteria", ["questions", "a.b", "criteria"]),
        ("questions.a.c.criteria", ["questions", "a", "c", "criteria"]),
        ("questions.lost.criteria", ["questions", "lost", "criteria"]),
    ],
)
def test_a_field_becomes_a_path_though_names_have_dots(field: str | None, loc: list[str]) -> None:
    reply = render(InvalidRequest("no", field=field), ("a", "a.b"))
    assert reply.status_code == 422
    assert json.loads(bytes(reply.body))["detail"] == [{"loc": ["body", *loc], "msg": "no", "type": "invalid_request"}]


def test_half_a_surrogate_pair_is_spelled_out_in_an_error() -> None:
    problem = Problem(("q\ude00",), "bad \ud83d", "code")
    listed = json.loads(bytes(render(InvalidRequest("", problems=[problem])).body))
    assert listed["detail"] == [{"loc": ["body", "q\\ude00"], "msg": "bad \\ud83d", "type": "code"}]
    assert json.loads(bytes(render(RequestTooLong("\ud83d")).body))["detail"]["message"] == "\\ud83d"


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [(0.0, "1", "0"), (0.25, "1", "250"), (2.5, "3", "2500"), (2.0001, "3", "2001")],
)
def test_a_full_queue_says_when_to_come_back(wait_s: float, seconds: str, milliseconds: str) -> None:
    reply = render(Overloaded("full", retry_after_s=wait_s))
    assert reply.status_code == 429
    assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (seconds, milliseconds)


def test_an_overloaded_engine_over_a_socket(serve: Serve) -> None:
    server = serve(StubEngine(max_running=0, retry_after_s=0.5))
    reply = ask(server.url)
    assert (reply.status_code, reply.headers["retry-after-ms"]) == (429, "500")
    assert reply.json()["detail"] == {"error_type": "overloaded", "message": "the queue is full"}


def test_a_request_that_is_too_long_over_a_socket(serve: Serve) -> None:
    reply = ask(serve(StubEngine(max_request_tokens=3)).url)
    assert reply.status_code == 413
    assert reply.json()["detail"]["error_type"] == "max_tokens_exceeded"
    assert "at most 3 fit" in reply.json()["detail"]["message"]


def test_what_the_engine_refuses_names_the_field(serve: Serve) -> None:
    reply = ask(serve(StubEngine(failure=InvalidRequest("has no token", field="questions.q.criteria"))).url)
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "questions", "q", "criteria"]


def test_a_broken_engine_over_a_socket(serve: Serve) -> None:
    reply = ask(serve(StubEngine(fault=EngineFault("the device is lost"))).url)
    assert reply.status_code == 503
    assert reply.json()["detail"] == {"error_type": "engine_fault", "message": "the device is lost"}


def test_a_bug_is_json_too_and_keeps_its_secrets(serve: Serve) -> None:
    reply = ask(serve(StubEngine(failure=KeyError("secret"))).url)
    assert reply.status_code == 500
    assert reply.json()["detail"]["error_type"] == "internal_error"
    assert reply.headers["x-typesafe-request-id"] in reply.json()["detail"]["message"]
    assert "secret" not in reply.text


@pytest.mark.parametrize(
    ("method", "path", "status", "error_type"),
    [
        ("GET", "/v1/nothing", 404, "no_such_address"),
        ("POST", "/nowhere", 404, "no_such_address"),
        ("GET", "/v1/systemone", 405, "method_not_allowed"),
    ],
)
def test_wrong_addresses_and_methods(serve: Serve, method: str, path: str, status: int, error_type: str) -> None:
    reply = httpx2.request(method, serve(StubEngine()).url + path)
    assert (reply.status_code, reply.json()["detail"]["error_type"]) == (status, error_type)
    assert path in reply.json()["detail"]["message"]
    assert status != 405 or reply.headers["allow"] == "OPTIONS, POST"


@pytest.mark.parametrize("cls", list(STATUSES), ids=lambda cls: cls.__name__)
def test_one_error_has_one_account_for_clients_of_either_kind(cls: type[RametError]) -> None:
    error = cls("what went wrong")
    ours, theirs = render(error), openai_errors.render(error)
    row, body = STATUSES[cls], json.loads(bytes(ours.body))
    assert set(body) == {"detail", "error"}
    assert {"error": body["error"]} == json.loads(bytes(theirs.body))
    assert body["error"]["message"] == "what went wrong"
    assert body["error"]["code"] == (row.code or row.error_type)
    assert (ours.status_code, theirs.status_code) == (row.status, row.text_status or row.status)
    assert {name: ours.headers[name] for name in ours.headers if name != "content-length"} == {
        name: theirs.headers[name] for name in theirs.headers if name != "content-length"
    }
    assert cls is not WrongMethod or "allow" in ours.headers


def test_a_list_of_problems_is_one_message_too() -> None:
    problems = [Problem(("questions", "a", "criteria"), "too short", "too_short"), Problem(("state",), "missing", "m")]
    error = json.loads(bytes(render(InvalidRequest("", problems=problems)).body))["error"]
    assert error == {
        "message": "questions.a.criteria: too short; state: missing",
        "type": "invalid_request_error",
        "param": "questions.a.criteria",
        "code": "too_short",
    }


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/v1/decisions", "/v1/systemone"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/systemone", "/v1/systemone"),
        ("/models", "/v1/models"),
        ("/metric", "/metrics"),
        ("/v1/embeddings", None),
    ],
)
def test_an_unknown_address_says_which_was_meant(serve: Serve, asked: str, meant: str | None) -> None:
    reply = httpx2.post(serve(StubEngine()).url + asked, json={})
    message = reply.json()["error"]["message"]
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_such_address")
    assert message == f"Not Found: POST {asked}" + (f"; did you mean {meant}?" if meant else "")
