"""Exchange: every reply carries a request id."""

from __future__ import annotations

import re

import httpx2
import pytest
from conftest import Serve
from live_server import LiveServer
from stub_engine import StubEngine

QUESTION = {"type": "noul", "instructions": "Is it late?"}
BODY = {"state": "x", "questions": {"q": QUESTION}}
MADE = re.compile(r"req_[0-9a-f]{32}")


def test_a_sane_id_is_echoed(live: LiveServer) -> None:
    headers = {"x-typesafe-request-id": "trace:1.a-b_c"}
    assert httpx2.get(f"{live.url}/health", headers=headers).headers["x-typesafe-request-id"] == "trace:1.a-b_c"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "<script>", "a,b"])
def test_any_other_id_is_replaced(live: LiveServer, given: str) -> None:
    reply = httpx2.get(f"{live.url}/health", headers={"x-typesafe-request-id": given})
    assert MADE.fullmatch(reply.headers["x-typesafe-request-id"])


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
