"""The routes for text over a socket, of a writer that is told what to write."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import END, StubWriter, written
from fixtures.live_server import LiveServer, live_server
from fixtures.waiting import GUARD_S, wait_until
from pydantic import SecretStr

from ramet.errors import EngineFault, InvalidRequest, Overloaded, RequestTooLong
from ramet.generation import Kind
from ramet.server.settings import ServerSettings
from tests.text.test_tokenizer_spm import IDS, PLAIN

TEXT = "ab 🦩the cab"
CHAT = {"messages": [{"role": "user", "content": "ab"}]}
ROUTES: dict[str, dict[str, Any]] = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "ab"}}
routes = pytest.mark.parametrize("path", ROUTES)


@pytest.fixture(scope="module")
def running() -> Iterator[LiveServer]:
    with live_server(StubEngine(name="acme/tiny:v1")) as server:
        yield server


@pytest.fixture
def text() -> StubWriter:
    return StubWriter(reply=written(TEXT))


@pytest.fixture
def server(running: LiveServer, text: StubWriter) -> Iterator[LiveServer]:
    """After whatever was sent, an ordinary request is served."""
    assert isinstance(running.engine, StubEngine)
    running.engine.text = text
    yield running
    assert text.n_running == 0
    running.engine.text = StubWriter(reply=written(TEXT))
    for path in ROUTES:
        reply = ask(running, path, max_tokens=64)
        assert (reply.status_code, text_of(reply.json()["choices"][0])) == (200, TEXT)


def ask(server: LiveServer, path: str, **fields: Any) -> httpx2.Response:
    return httpx2.post(server.url + path, json=ROUTES[path] | fields)


def text_of(choice: dict[str, Any]) -> str:
    found: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return found


def events(reply: httpx2.Response) -> list[dict[str, Any]]:
    """Of a whole stream; the line behind the last is checked."""
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *lines, done, empty = reply.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def error_of(reply: httpx2.Response) -> dict[str, Any]:
    body = json.loads(reply.content.decode("utf-8"))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = body["error"]
    return found


def test_a_chat(server: LiveServer, text: StubWriter) -> None:
    began = int(time.time())
    reply = ask(server, "/v1/chat/completions", model="jev-latest", seed=5, cache_salt="s").json()
    made = text.received[0]
    assert (made.seed, made.cache_salt, PLAIN.decode(made.prompt)[:20]) == (5, "s", "<bos><start_of_turn>")
    assert reply["id"].startswith("chatcmpl-")
    assert began <= reply["created"] <= time.time()
    n, n_prompt = len(text.reply), len(made.prompt)
    assert {key: reply[key] for key in reply if key not in ("id", "created")} == {
        "object": "chat.completion",
        "model": "acme/tiny:v1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": n,
            "total_tokens": n_prompt + n,
            "prompt_tokens_details": {"cached_tokens": 2},
            "x_steps": 6,
            "x_canvases": 2,
        },
    }


def test_a_completion(server: LiveServer) -> None:
    reply = ask(server, "/v1/completions", max_tokens=3).json()
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert reply["choices"] == [
        {"index": 0, "text": "ab \ufffd", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]


@routes
def test_a_stream_is_the_reply_in_parts(server: LiveServer, path: str) -> None:
    for stop in ([], ["the"], [" c"]):
        fields: dict[str, Any] = {"max_tokens": 64, "stop": stop, "logprobs": 2}
        if "chat" in path:
            fields |= {"logprobs": True, "top_logprobs": 2}
        whole = ask(server, path, **fields).json()
        parts = events(ask(server, path, **fields, stream=True, stream_options={"include_usage": True}))
        choices = [part["choices"][0] for part in parts[:-1]]
        (choice,) = whole["choices"]
        deltas = [c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices]
        assert "".join(deltas) == text_of(choice)
        assert not any("\ufffd" in delta for delta in deltas)
        assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1]["finish_reason"] == choice["finish_reason"]
        assert choices[-1].get("stop_reason") == choice["stop_reason"] == (stop[0] if stop else None)
        assert (parts[-1]["choices"], parts[-1]["usage"]) == ([], whole["usage"])
        assert not any("usage" in part for part in parts[:-1])
        assert len({(part["id"], part["created"], part["model"], part["object"]) for part in parts}) == 1
        for key in ("content",) if "chat" in path else ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [each for c in choices if c["logprobs"] for each in c["logprobs"][key]]
            assert joined == choice["logprobs"][key]
            assert len(joined) == whole["usage"]["completion_tokens"]
    if "chat" in path:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}


@routes
@pytest.mark.parametrize("kind", ["masks", "next"])
def test_a_stream_of_pieces_is_the_reply_in_parts(server: LiveServer, text: StubWriter, path: str, kind: Kind) -> None:
    """However they are cut, some of no token, some within a character; each event has text, or the end."""
    text.kind = kind
    logprobs: dict[str, Any] = {"logprobs": True} if "chat" in path else {"logprobs": 1}
    for widths in ((0, 3, 1), (1,), (0, 0, 32), (5, 2)):
        for stop in ([], ["the"], [" cb", " cab"]):
            text.widths, fields = widths, {"max_tokens": 64, "stop": stop} | logprobs
            whole = ask(server, path, **fields).json()
            parts = events(ask(server, path, **fields, stream=True, stream_options={"include_usage": True}))
            (choice,), choices = whole["choices"], [part["choices"][0] for part in parts[:-1]]
            deltas = [c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices]
            assert "".join(deltas) == text_of(choice) == (TEXT[: TEXT.find(stop[-1])] if stop else TEXT)
            assert all(deltas["chat" in path : -1])
            assert (choices[-1]["finish_reason"], parts[-1]["usage"]) == ("stop", whole["usage"])
            key = "content" if "chat" in path else "token_logprobs"
            joined = [each for c in choices if c["logprobs"] for each in c["logprobs"][key]]
            assert joined == choice["logprobs"][key]
            assert len(joined) == whole["usage"]["completion_tokens"]


@routes
def test_what_a_reply_without_canvases_took(server: LiveServer, text: StubWriter, path: str) -> None:
    text.kind, text.widths, text.n_rows = "masks", (3,), 8
    usage = ask(server, path, max_tokens=64).json()["usage"]
    n, n_pieces = len(text.reply), -(-len(text.reply) // 3)
    assert usage == {
        "prompt_tokens": len(text.received[0].prompt),
        "completion_tokens": n,
        "total_tokens": n + len(text.received[0].prompt),
        "prompt_tokens_details": {"cached_tokens": 2},
        "x_steps": 3 * n_pieces,
        "x_tokens_per_step": round(n / (3 * n_pieces), 4),
        "x_mean_chunk": round(8 / 3, 4),
    }
    text.chunk_size = 4
    assert ask(server, path, max_tokens=64, seed=0).json()["usage"] == usage | {"x_chunk_size": 4}


@routes
@pytest.mark.parametrize("kind", ["canvas", "masks"])
def test_the_usage_of_every_event(server: LiveServer, text: StubWriter, path: str, kind: Kind) -> None:
    text.kind = kind
    for include in (False, True):
        told = {"include_usage": include, "continuous_usage_stats": True}
        parts = events(ask(server, path, max_tokens=64, stream=True, stream_options=told))
        counts = [part["usage"]["completion_tokens"] for part in parts]
        assert counts == sorted(counts)
        assert counts[-1] == len(text.reply)
        assert all(part["choices"] for part in parts) != include


@routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [("canvas", "chunk_size", 8), ("canvas", "temperature", 0.5), ("masks", "vllm_xargs", {"diffusion_max_steps": 1}),
     ("next", "confidence_threshold", 0.9), ("next", "unmasking_strategy", "sequential")],
)  # fmt: skip
def test_parameters_of_other_models(
    server: LiveServer, text: StubWriter, path: str, stream: bool, kind: Kind, field: str, value: Any
) -> None:
    text.kind = kind
    reply = ask(server, path, stream=stream, **{field: value})
    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert error["message"].startswith(f"{field}: ")
    assert not text.received


@routes
@pytest.mark.parametrize("kind", ["masks", "next"])
def test_other_tokens_than_the_drawn_one_are_not_told(
    server: LiveServer, text: StubWriter, path: str, kind: Kind
) -> None:
    text.kind = kind
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 1} if "chat" in path else {"logprobs": 2}
    error = error_of(ask(server, path, **more))
    assert error["param"] == list(more)[-1]
    fields: dict[str, Any] = {"logprobs": True} if "chat" in path else {"logprobs": 1}
    told = ask(server, path, max_tokens=1, **fields).json()["choices"][0]["logprobs"]
    if "chat" in path:
        assert [(t["token"], t["top_logprobs"]) for t in told["content"]] == [("ab", [])]
    else:
        assert (told["tokens"], [*told["top_logprobs"][0]]) == (["ab"], ["ab"])


def test_how_ids_are_drawn_reaches_the_writer(server: LiveServer, text: StubWriter) -> None:
    text.kind = "masks"
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 3, "confidence_threshold": 0.8, "denoising_steps": 4,
              "unmasking_strategy": "entropy_bounded", "entropy_bound": 0.2, "chunk_size": 8}  # fmt: skip
    for path in ROUTES:
        assert ask(server, path, **fields).status_code == 200
        assert {name: getattr(text.received[-1], name) for name in fields} == fields
    text.failure = InvalidRequest("33 is not from 2 to the block's 32", field="chunk_size")
    assert error_of(ask(server, path, chunk_size=33))["param"] == "chunk_size"


@routes
@pytest.mark.parametrize("wrong", [len(IDS), -1, 1 << 40])
def test_an_end_of_a_reply_is_an_id_of_the_model(server: LiveServer, text: StubWriter, path: str, wrong: int) -> None:
    error = error_of(ask(server, path, stop_token_ids=[3, wrong]))
    assert error["param"] == "stop_token_ids"
    assert f"ids run from 0 to {len(IDS) - 1}; {wrong} is none" in error["message"]
    assert not text.received


@routes
def test_without_a_usage_there_is_no_event_for_it(server: LiveServer, path: str) -> None:
    parts = events(ask(server, path, stream=True))
    assert all(part["choices"] and "usage" not in part for part in parts)


def test_several_prompts(server: LiveServer, text: StubWriter) -> None:
    prompts = [[IDS["ab"], i] for i in range(6)]
    text.replies = {tuple(prompt): written("ab" * (i + 1)) for i, prompt in enumerate(prompts)}
    whole = ask(server, "/v1/completions", prompt=prompts, max_tokens=64).json()
    assert [(c["index"], c["text"]) for c in whole["choices"]] == [(i, "ab" * (i + 1)) for i in range(6)]
    assert whole["usage"]["prompt_tokens"] == 12
    assert whole["usage"]["completion_tokens"] == sum(len(written("ab" * (i + 1))) for i in range(6))
    texts = [""] * 6
    for part in events(ask(server, "/v1/completions", prompt=prompts, max_tokens=64, stream=True)):
        texts[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert texts == ["ab" * (i + 1) for i in range(6)]


def test_one_of_several_prompts_that_fails_ends_them_all(server: LiveServer, text: StubWriter) -> None:
    text.failure, text.fails_at, text.width = Overloaded("full", retry_after_s=0.5), 1, 4
    text.replies = {(5,): [END], (6,): written("ab" * 40)}
    reply = ask(server, "/v1/completions", prompt=[[5], [6], [6]], max_tokens=64)
    assert (reply.status_code, error_of(reply)["type"]) == (429, "rate_limit_error")
    assert reply.headers["retry-after-ms"] == "500"
    assert (text.n_running, text.n_cancelled) == (0, 2)


@routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "kind", "param", "code"),
    [
        (InvalidRequest("is too wide", field="canvas_length"), 400, "invalid_request_error",
         "vllm_xargs.diffusion_canvas_length", "invalid_value"),
        (RequestTooLong("more than fit"), 400, "invalid_request_error", None, "context_length_exceeded"),
        (Overloaded("full"), 429, "rate_limit_error", None, "overloaded"),
        (EngineFault("lost"), 503, "server_error", None, "engine_fault"),
        (KeyError("secret"), 500, "server_error", None, "internal_error"),
    ],
)  # fmt: skip
def test_errors_before_anything_is_sent(
    server: LiveServer, text: StubWriter, path: str, stream: bool, failure: Exception, status: int, kind: str,
    param: str | None, code: str,
) -> None:  # fmt: skip
    text.failure = failure
    reply = ask(server, path, stream=stream)
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json")
    error = error_of(reply)
    assert (error["type"], error["param"], error["code"]) == (kind, param, code)
    assert "secret" not in reply.text


@routes
@pytest.mark.parametrize(
    ("failure", "code"), [(EngineFault("the device is lost"), "engine_fault"), (KeyError("secret"), "internal_error")]
)
def test_an_error_later_is_the_last_event(
    server: LiveServer, text: StubWriter, path: str, failure: Exception, code: str
) -> None:
    text.failure, text.fails_at = failure, 1
    reply = ask(server, path, stream=True, max_tokens=64)
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in reply.text.strip().split("\n\n")]
    assert len(parts) == (2 if "chat" in path else 1)
    assert (last["error"]["code"], last["error"]["type"]) == (code, "server_error")
    assert "secret" not in reply.text
    assert text.n_running == 0


@routes
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model": ', "json_invalid"),
        (b'{"stream": true, "stream": false}', "json_duplicate_name"),
        (b"\xff", "malformed_body"),
        (b'{"stream": true, "seed": NaN}', "malformed_body"),
        (b"[" * 1000, "malformed_body"),
        (b"[]", "model_type"),
    ],
)
def test_bodies_that_are_no_request(server: LiveServer, text: StubWriter, path: str, body: bytes, code: str) -> None:
    reply = httpx2.post(server.url + path, content=body)
    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (400, None, code)
    assert not text.received


@routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"temperature": 0.5}, 400, "temperature", "unsupported_parameter"),
        ({"nonsense": 0}, 400, "nonsense", "unknown_parameter"),
        ({"max_tokens": -1, "seed": "x"}, 400, "max_tokens", "greater_than_equal"),
        ({"vllm_xargs": {"diffusion_pinned": 3}}, 400, "vllm_xargs.diffusion_pinned", "list_type"),
        ({"model": "gpt"}, 404, "model", "model_not_found"),
    ],
)
def test_wrong_requests_never_begin_a_stream(
    server: LiveServer, text: StubWriter, path: str, stream: bool, fields: Any, status: int, param: str, code: str
) -> None:
    reply = ask(server, path, stream=stream, **fields)
    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert all(name in error["message"] for name in fields if name not in ("vllm_xargs", "model"))
    assert not text.received


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_that_refuses(server: LiveServer, stream: bool) -> None:
    history = [{"role": "user", "content": "ab"}, {"role": "tool", "content": "14:05"}]
    for messages, message in ((history, "no tools, please"), ([], "at least one message")):
        reply = ask(server, "/v1/chat/completions", messages=messages, stream=stream)
        assert reply.status_code == 400
        error = error_of(reply)
        assert message in error["message"]
        assert error["param"] == "messages"


def test_half_a_surrogate_pair_and_a_whole_one(server: LiveServer, text: StubWriter) -> None:
    for content in ('"x \\udcf0 y"', '[{"type": "text", "text": "\\ud83d"}]'):
        body = b'{"messages": [{"role": "user", "content": %s}]}' % content.encode()
        reply = httpx2.post(server.url + "/v1/chat/completions", content=body)
        assert (reply.status_code, error_of(reply)["code"]) == (400, "string_unicode")
    body = b'{"messages": [{"role": "user", "content": "\\ud83e\\udda9"}]}'
    assert httpx2.post(server.url + "/v1/chat/completions", content=body).status_code == 200
    assert "🦩" in PLAIN.decode(text.received[-1].prompt)


def test_control_tokens_of_the_callers_stay_text(server: LiveServer, text: StubWriter) -> None:
    spelled = "<end_of_turn><bos>"
    ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": spelled}])
    ask(server, "/v1/completions", prompt=spelled)
    for made, n_ends, n_bos in zip(text.received, (1, 0), (1, 1), strict=True):
        assert (made.prompt.count(END), made.prompt.count(IDS["<bos>"])) == (n_ends, n_bos)
        assert spelled in PLAIN.decode(made.prompt)


@routes
def test_more_logprobs_than_the_server_tells(serve: Serve, path: str) -> None:
    engine = StubEngine(text=StubWriter(reply=written("ab")))
    server = serve(engine, ServerSettings(max_logprobs=3))
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 3} if "chat" in path else {"logprobs": 3}
    assert ask(server, path, **fields).status_code == 200
    name = list(fields)[-1]
    reply = ask(server, path, **fields | {name: 4})
    assert (reply.status_code, error_of(reply)["param"]) == (400, name)
    assert "--max-logprobs" in error_of(reply)["message"]


@routes
def test_a_model_that_writes_no_text(serve: Serve, path: str) -> None:
    reply = ask(serve(StubEngine()), path)
    assert (reply.status_code, error_of(reply)["code"]) == (501, "not_supported")
    assert reply.headers["x-should-retry"] == "false"


@routes
def test_keys(serve: Serve, path: str) -> None:
    server = serve(StubEngine(text=StubWriter(reply=written("ab"))), ServerSettings(api_key=SecretStr("key")))
    reply = ask(server, path)
    assert (reply.status_code, error_of(reply)["type"]) == (401, "authentication_error")
    headers = {"authorization": "Bearer key"}
    assert httpx2.post(server.url + path, json=ROUTES[path], headers=headers).status_code == 200


def test_a_model_with_a_slash(server: LiveServer) -> None:
    for name in ("acme/tiny:v1", "acme%2Ftiny%3Av1"):
        assert httpx2.get(f"{server.url}/v1/models/{name}").json()["id"] == "acme/tiny:v1"
    assert httpx2.get(f"{server.url}/v1/models/acme/none").status_code == 404
    for path in ROUTES:
        assert ask(server, path, model="acme/tiny:v1").json()["model"] == "acme/tiny:v1"


async def left(url: str, body: dict[str, Any], after: int) -> None:
    """Ask, and go away once so many bytes of the answer have come."""
    async with httpx2.AsyncClient() as client, client.stream("POST", url, json=body) as reply:
        n = 0
        if after:
            async for chunk in reply.aiter_raw():
                n += len(chunk)
                if n >= after:
                    break


@routes
def test_a_client_that_leaves_a_stream_cancels_its_work(server: LiveServer, text: StubWriter, path: str) -> None:
    text.reply, text.width, text.delay_s = written("ab" * 400), 4, 0.2
    asyncio.run(left(server.url + path, ROUTES[path] | {"stream": True, "max_tokens": 400}, after=300))
    assert_cancelled(text)


@routes
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_answer(server: LiveServer, text: StubWriter, path: str, stream: bool) -> None:
    text.delay_s = 3600.0

    async def ask_and_leave() -> None:
        async with httpx2.AsyncClient() as client:
            asked = asyncio.create_task(client.post(server.url + path, json=ROUTES[path] | {"stream": stream}))
            await asyncio.to_thread(wait_until, lambda: text.n_running)
            asked.cancel()

    asyncio.run(ask_and_leave())
    assert_cancelled(text)


def test_a_reply_that_its_stop_ends_is_written_no_further(server: LiveServer, text: StubWriter) -> None:
    text.reply, text.width = written("the" + "ab" * 100), 4
    for stream in (False, True):
        text.n_canvases = 0
        ask(server, "/v1/chat/completions", stop=["the"], stream=stream)
        assert text.n_canvases == 1
    assert text.n_cancelled == 2


def test_metrics(serve: Serve, text: StubWriter) -> None:
    server = serve(StubEngine(text=text))
    for stream in (False, True):
        ask(server, "/v1/chat/completions", stream=stream)
    lines = httpx2.get(server.url + "/metrics").text.splitlines()
    counts = dict(line.split() for line in lines if line.startswith("ramet_") and "{" not in line)
    n_prompt = len(text.received[0].prompt)
    for name, value in {
        "denoise_steps": 12, "denoise_canvases": 4, "output_tokens": 2 * len(text.reply), "input_tokens": 2 * n_prompt,
        "cached_tokens": 4,
    }.items():  # fmt: skip
        assert float(counts[f"ramet_{name}_total"]) == value
    assert any('route="/v1/chat/completions",status="200"} 2.0' in line for line in lines)


def assert_cancelled(text: StubWriter) -> None:
    wait_until(lambda: not text.n_running)
    assert (text.n_running, text.n_cancelled) == (0, 1)


def test_metrics_of_replies_without_canvases(serve: Serve, text: StubWriter) -> None:
    text.kind, text.widths = "masks", (2,)
    server = serve(StubEngine(text=text))
    usage = ask(server, "/v1/chat/completions").json()["usage"]
    lines = httpx2.get(server.url + "/metrics").text.splitlines()
    counts = dict(line.split() for line in lines if line.startswith("ramet_") and "{" not in line)
    for name, value in {
        "denoise_steps": usage["x_steps"], "denoise_canvases": 0, "output_tokens": usage["completion_tokens"],
        "input_tokens": usage["prompt_tokens"], "cached_tokens": 2,
    }.items():  # fmt: skip
        assert float(counts[f"ramet_{name}_total"]) == value


def test_a_template_that_takes_long_holds_up_no_decision(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def of(*_: Any) -> None:
        begun.set()
        assert go.wait(GUARD_S)
        raise InvalidRequest("rendered")

    monkeypatch.setattr("ramet.server.openai.route.RequestedReplies.of", of)
    server = serve(StubEngine(text=StubWriter()))
    with ThreadPoolExecutor() as pool:
        chat = pool.submit(httpx2.post, f"{server.url}/v1/chat/completions", json=CHAT)
        assert begun.wait(GUARD_S)
        asked = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
        assert httpx2.post(f"{server.url}/v1/systemone", json=asked).status_code == 200
        go.set()
        assert "rendered" in chat.result().text
