"""A request costs at most what its size says, in time and in memory, and so does its answer."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from select import select

import httpx2
import pytest
from attacks.bodies import ATTACKS, CHAT, COMPLETIONS, DECISIONS, LIMIT, Attack, decision
from attacks.bounded import bounded
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer, live_server
from fixtures.raw_client import connected
from fixtures.tiny_engine import tiny_engine
from fixtures.waiting import GUARD_S, wait_until
from hypothesis import given
from hypothesis import strategies as st

from ramet.request import DecisionRequest
from ramet.server.bodies import MAX_BODIES
from ramet.server.openai.request import ChatRequest
from ramet.server.settings import ServerSettings

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_MIB = 512  # 32 times a body of 16 MiB: as bytes, as text, as values, as tokens
NAMES = {*DecisionRequest.model_fields, *ChatRequest.model_fields, "prompt", "type", "criteria", "instructions", "role",
         "content", "true", "false", "noul", "choice", "score"}  # fmt: skip
MOST_ANSWERED = 64 << 10  # bytes of an error


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with tiny_engine("qwen3") as engine, live_server(engine) as server:
        yield server


def post(server: LiveServer, path: str, body: bytes, headers: dict[str, str] | None = None) -> httpx2.Response:
    return httpx2.post(f"{server.url}{path}", content=body, headers=headers, timeout=None)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_it_is_refused_at_a_bounded_price(server: LiveServer, attack: Attack) -> None:
    body, headers = attack.sent()
    with bounded(MOST_MIB):
        answer = post(server, attack.path, body, headers)
    assert answer.status_code == attack.status, answer.text[:1000]
    assert len(answer.content) <= MOST_ANSWERED
    assert sum(len(name) + len(value) for name, value in answer.headers.items()) < 8 << 10
    assert post(server, DECISIONS, decision()).status_code == 200


@pytest.mark.parametrize(("encoding", "member"), [("gzip", gzip.compress(b"", mtime=0)), ("zstd", zstd.compress(b""))])
def test_empty_members_are_not_gone_through_for_ever(server: LiveServer, encoding: str, member: bytes) -> None:
    body = member * (LIMIT // len(member))
    with bounded(MOST_MIB):
        answer = post(server, DECISIONS, body, {"content-encoding": encoding})
    assert (answer.status_code, answer.json()["detail"]["error_type"]) == (400, "malformed_body")
    assert "more than 1024 members" in answer.text


def test_a_long_name_that_is_ignored_is_no_long_header(server: LiveServer) -> None:
    """A client gives up an answer with such a head."""
    answer = post(server, DECISIONS, decision(**{"\u00e4" * (1 << 20): 1, "user": 2}))
    assert answer.status_code == 200
    long, short = answer.headers["x-ramet-ignored"].split(", ")
    assert len(long) < 1024
    assert short == "user"


def test_an_answer_is_no_larger_than_its_question(server: LiveServer) -> None:
    """Names come back a few times at most."""
    names = {f"{i:03}{'n' * 1000}": None for i in range(255)}
    body = decision(questions={"q": {"type": "choice", "criteria": names}}, x_method="options", x_confidence="top")
    answer = post(server, DECISIONS, body)
    assert answer.status_code in {200, 413}
    assert len(answer.content) < 4 * len(body)


@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from([*NAMES]) | st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=30,
    ),
    path=st.sampled_from([DECISIONS, CHAT, COMPLETIONS]),
)
def test_any_json_is_answered_with_a_status_of_the_document(server: LiveServer, body: object, path: str) -> None:
    with bounded(MOST_MIB):
        answer = post(server, path, json.dumps(body).encode())
    assert answer.status_code in {200, 400, 404, 413, 422}
    assert len(answer.content) <= MOST_ANSWERED


def test_bodies_that_do_not_end_take_no_more_than_their_room(serve: Serve) -> None:
    size = 1024
    server = serve(StubEngine(), ServerSettings(max_body_bytes=size))
    head = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server.port)) for _ in range(MAX_BODIES + 1)]
        for client in clients:
            client.sendall(head + b" " * (size - 1))
        told, _, _ = select(clients, [], [], GUARD_S)
        assert told[0].recv(1 << 16).startswith(b"HTTP/1.1 503 ")
    wait_until(lambda: post(server, DECISIONS, decision()).status_code == 200)


def test_an_address_of_many_names(server: LiveServer) -> None:
    query = "&".join(f"x_debia{i}=1" for i in range(3000))
    answer = post(server, f"{DECISIONS}?{query}", decision())
    assert (answer.status_code, len(answer.json()["detail"])) == (422, 1)
