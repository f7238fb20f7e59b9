"""Exchange: every reply carries a request id."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer, live_server

from ramet.server import create_app
from ramet.server.exchange import REQUEST_IDS

QUESTION = {"type": "noul", "instructions": "Is it late?"}
BODY = {"state": "x", "questions": {"q": QUESTION}}
MADE = re.compile(r"req_[0-9a-f]{32}")


@pytest.mark.parametrize("name", REQUEST_IDS)
def test_a_sane_id_comes_back_under_both_names(live: LiveServer, name: str) -> None:
    reply = httpx2.get(f"{live.url}/health", headers={name: "trace:1.a-b_c"})
    assert [reply.headers.get_list(each) for each in REQUEST_IDS] == [["trace:1.a-b_c"], ["trace:1.a-b_c"]]


def test_of_two_ids_system_ones_counts_unless_it_is_none(live: LiveServer) -> None:
    for given, told in (("a", "a"), ("not sane", "b")):
        headers = {"x-typesafe-request-id": given, "x-request-id": "b"}
        assert httpx2.get(f"{live.url}/health", headers=headers).headers["x-request-id"] == told


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "<script>", "a,b"])
def test_any_other_id_is_replaced(live: LiveServer, given: str) -> None:
    reply = httpx2.get(f"{live.url}/health", headers=dict.fromkeys(REQUEST_IDS, given))
    assert MADE.fullmatch(reply.headers["x-typesafe-request-id"])
    assert reply.headers["x-request-id"] == reply.headers["x-typesafe-request-id"]


def test_ids_are_made_for_errors_too(serve: Serve) -> None:
    engine = StubEngine()
    url = serve(engine).url
    replies = [httpx2.post(f"{url}/v1/systemone", json=BODY), httpx2.post(f"{url}/v1/systemone", json={})]
    replies += [httpx2.get(f"{url}/nowhere"), httpx2.get(f"{url}/v1/systemone")]
    engine.failure = ValueError("bug")
    replies.append(httpx2.post(f"{url}/v1/systemone", json=BODY))
    assert [reply.status_code for reply in replies] == [200, 422, 404, 405, 500]
    ids = {reply.headers["x-typesafe-request-id"] for reply in replies}
    assert len(ids) == len(replies)
    assert all(MADE.fullmatch(made) for made in ids)


def test_the_id_is_part_of_the_state_that_whoever_logs_can_read() -> None:
    """Also of one that stands around the application."""
    app, sent = create_app(StubEngine()), []
    scope = {
        "type": "http", "method": "GET", "path": "/health", "headers": [(b"x-request-id", b"abc")],
        "query_string": b"", "asgi": {"version": "3.0"},
    }  # fmt: skip

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 200
    assert scope["state"] == {"request_id": "abc"}


@pytest.fixture(scope="module")
def stub() -> Iterator[LiveServer]:
    with live_server(StubEngine()) as server:
        yield server


PROBED = ["/", "/health", "/metrics", "/v1/models", "/v1/models/stub"]


@pytest.mark.parametrize("path", PROBED)
def test_probes_may_ask_with_head_and_options(stub: LiveServer, path: str) -> None:
    path = path.replace("stub", "jev-latest")
    got, head = (httpx2.request(method, stub.url + path) for method in ("GET", "HEAD"))
    assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
    assert got.content
    names = {"content-type", "content-length"}
    if path != "/metrics":  # whose numbers grow
        assert {name: head.headers[name] for name in names} == {name: got.headers[name] for name in names}
    options = httpx2.options(stub.url + path)
    if path in ("/", "/health"):
        assert (options.status_code, options.json()["status"]) == (200, "ok")
    else:
        assert (options.status_code, options.headers["allow"], options.content) == (204, "GET, HEAD, OPTIONS", b"")


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/chat/completions", "/v1/completions"])
def test_what_is_posted_has_no_head(stub: LiveServer, path: str) -> None:
    options, head = httpx2.options(stub.url + path), httpx2.head(stub.url + path)
    assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")
    assert (head.status_code, head.headers["allow"]) == (405, "OPTIONS, POST")
    assert httpx2.options(stub.url + "/nowhere").status_code == 404


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/jev-latest", "/docs"])
def test_a_slash_at_the_end_changes_nothing(stub: LiveServer, path: str) -> None:
    """It was a redirect to the host that the client named."""
    for method in ("GET", "HEAD", "OPTIONS"):
        replies = [
            httpx2.request(method, stub.url + path + end, headers={"host": "elsewhere.example"}) for end in ("", "/")
        ]
        assert [reply.status_code for reply in replies] == [
            204 if method == "OPTIONS" and path != "/health" else 200
        ] * 2
        assert all("location" not in reply.headers for reply in replies)


def test_a_body_may_be_posted_to_an_address_with_a_slash(stub: LiveServer) -> None:
    assert httpx2.post(f"{stub.url}/v1/systemone/", json=BODY).json()["answers"]["q"]["type"] == "noul"


def test_a_request_that_the_stop_cuts_off_is_told(serve: Serve) -> None:
    """As those that last longer than the server waits for them."""
    app, sent = create_app(StubEngine(delay_s=3600)), list[Any]()
    body = json.dumps(BODY).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/systemone", "headers": [], "query_string": b"",
        "asgi": {"version": "3.0"},
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        decides = asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            decides.set()
            return await asyncio.Future[Any]()

        task = asyncio.create_task(app(scope, receive, send))
        await decides.wait()
        app.state.running.end()
        await task

    asyncio.run(run())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "unavailable"
