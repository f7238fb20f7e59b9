"""POST /v1/systemone: what reaches the engine, what comes back, and what happens when the client leaves."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer
from fixtures.waiting import wait_until

from ramet.server import parse_body
from ramet.server.documents import parse_json

REQUEST = {
    "state": "The parcel is late.",
    "questions": {
        "late": {"type": "noul", "instructions": "Is it late?"},
        "team": {"type": "choice", "criteria": {"Billing": None, "Shipping": "Parcels"}},
        "anger": {"type": "score", "criteria": [{"label": "calm", "signs": None}, "angry", "furious"]},
    },
}


def post(server: LiveServer, body: Any) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/systemone", json=body)


def test_the_answer_is_the_decision_to_the_last_digit(serve: Serve) -> None:
    engine = StubEngine()
    answered = post(serve(engine), REQUEST).json()
    assert list(answered["answers"]) == ["late", "team", "anger"]
    expected = engine._decision(engine.received[0])
    assert answered == expected.model_dump(mode="json")
    levels = answered["answers"]["anger"]["legend"]
    assert levels == {"0": {"label": "calm", "signs": None}, "1": "angry", "2": "furious"}
    assert len(repr(answered["answers"]["late"]["noul"])) > 12


def test_extras_reach_the_engine(serve: Serve) -> None:
    engine = StubEngine()
    extras = {"x_method": "options", "x_debias": 3, "x_temperature": {"noul": 2}, "x_confidence": "top"}
    post(serve(engine), REQUEST | extras)
    received = engine.received[0]
    assert {name: getattr(received, name) for name in extras} == extras


def test_nothing_is_ignored_in_a_plain_request(live: LiveServer) -> None:
    assert "x-ramet-ignored" not in post(live, REQUEST).headers


@pytest.mark.parametrize("large", [False, True])
def test_a_large_body_is_parsed_off_the_event_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    parsers: list[int] = []

    def noted(body: bytes) -> Any:
        parsers.append(threading.get_ident())
        return parse_json(body)

    class Noting(StubEngine):
        async def decide_async(self, request: Any) -> Any:
            loops.append(threading.get_ident())
            return await super().decide_async(request)

    loops: list[int] = []
    monkeypatch.setattr(parse_body, "parse_json", noted)
    state = "late " * (parse_body.SMALL_BODY_BYTES if large else 1)
    assert post(serve(Noting()), REQUEST | {"state": state}).status_code == 200
    assert (parsers != loops) == large


def send_and_leave(server: LiveServer, engine: StubEngine) -> None:
    body = json.dumps(REQUEST).encode()
    head = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head + body)
        wait_until(lambda: engine.n_running == 1)


def test_a_client_that_goes_away_cancels_its_work(serve: Serve) -> None:
    engine = StubEngine(delay_s=3600)
    server = serve(engine)
    send_and_leave(server, engine)
    wait_until(lambda: engine.n_cancelled == 1)
    assert engine.n_running == 0
    engine.delay_s = 0
    assert post(server, REQUEST).status_code == 200
    wait_until(lambda: '/v1/systemone",status="499"} 1.0' in httpx2.get(f"{server.url}/metrics").text)


def test_a_client_that_leaves_in_mid_body_harms_nobody(serve: Serve) -> None:
    engine = StubEngine()
    server = serve(engine)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    wait_until(lambda: '/v1/systemone",status="499"} 1.0' in httpx2.get(f"{server.url}/metrics").text)
    assert engine.received == []


def test_others_are_answered_while_one_waits(serve: Serve) -> None:
    engine = StubEngine(delay_s=3600)
    server = serve(engine)
    body = json.dumps(REQUEST).encode()
    head = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(head + body)
        wait_until(lambda: engine.n_running == 1)
        engine.delay_s = 0
        assert post(server, REQUEST).status_code == 200
        assert engine.n_running == 1
