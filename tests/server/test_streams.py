"""Streams that are cut off: the last event says why, in OpenAI's form, and nothing says that the reply is whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written

from ramet.errors import Cancelled, EngineFault, RametError
from ramet.server import create_app

TEXT = "ab the cab"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}]},
    "/v1/completions": {"prompt": ["ab", "the"]},
}
routes = pytest.mark.parametrize("path", ROUTES)


def cut_off(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events before the last, and the last one's error."""
    assert text.endswith("\n\n")
    assert "[DONE]" not in text
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in text[:-2].split("\n\n")]
    assert list(last) == ["error"]
    assert set(last["error"]) == {"message", "type", "param", "code"}
    return parts, last["error"]


@routes
@pytest.mark.parametrize(
    ("failure", "code"), [(EngineFault("lost"), "engine_fault"), (Cancelled("the engine was closed"), "cancelled")]
)
def test_a_fault(serve: Serve, path: str, failure: RametError, code: str) -> None:
    text = StubWriter(reply=written(TEXT), width=2, failure=failure, fails_at=1)
    reply = httpx2.post(serve(StubEngine(text=text)).url + path, json=ROUTES[path] | {"stream": True})
    parts, error = cut_off(reply.text)
    assert parts
    assert all("choices" in part for part in parts)
    assert (error["message"], error["type"], error["code"]) == (str(failure), "server_error", code)


@routes
def test_the_servers_stop(path: str) -> None:
    """It cancels what still runs when the time for it is over."""
    text = StubWriter(reply=written(TEXT), width=2)
    app, sent = create_app(StubEngine(text=text)), list[Any]()
    body = json.dumps(ROUTES[path] | {"stream": True}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "asgi": {"version": "3.0"},
    }  # fmt: skip

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Future[Any]()

    async def run() -> None:
        begun = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body"):
                text.delay_s = 3600
                begun.set()

        task = asyncio.create_task(app(scope, receive, send))
        await begun.wait()
        app.state.running.end()
        await task

    asyncio.run(run())
    start, *bodies = sent
    assert start["status"] == 200
    assert [message.get("more_body", False) for message in bodies] == [True] * (len(bodies) - 1) + [False]
    _, error = cut_off(b"".join(message["body"] for message in bodies).decode())
    assert (error["type"], error["code"]) == ("server_error", "unavailable")
    assert text.n_running == 0


def test_openais_client_raises_what_the_event_says(serve: Serve) -> None:
    text = StubWriter(reply=written(TEXT), width=2, failure=EngineFault("the device is lost"), fails_at=1)
    url = serve(StubEngine(text=text)).url
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for stream in (
            client.completions.create(model="stub", prompt="ab", stream=True),
            client.chat.completions.create(model="stub", messages=[{"role": "user", "content": "ab"}], stream=True),
        ):
            with pytest.raises(openai.APIError, match="the device is lost") as caught:
                list(stream)
            assert caught.value.code == "engine_fault"
