"""The OpenAPI document and the server agree on bodies: what the schema takes is answered, what it does not take is
refused, and every answer has a status, a type and a body that the document tells.

The kind of what schemathesis does, with bodies that are made by rule: each value of a good body is left out, or
replaced by each of a list of odd ones. What a schema cannot tell is left out: two fields that contradict one another,
what a model's kind does not take, ids beyond its vocabulary, and the server's own limits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written
from fixtures.live_server import LiveServer, live_server

Path = tuple[str | int, ...]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.0, 2.5, 1e20, "", " ", "x", "auto", "none", [], [""], ["x"], [1], [[]], [[1], "x"],
    [None], {}, {"x": 1}, {"type": "text"},
]  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "/v1/systemone": {
        "model": "stub",
        "state": "The parcel is late.",
        "questions": {
            "n": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "It is."}},
            "o": {"type": "noul", "criteria": {"false": "It is not."}},
            "c": {"type": "choice", "instructions": {"ask": "Which?"}, "criteria": {"a": None, "b": ["x"]}},
            "s": {"type": "score", "criteria": ["low", "high"]},
        },
        "x_temperature": {"noul": 1.5},
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "ab"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        ],
        "max_tokens": 8,
        "logprobs": True,
        "stop": ["zzz"],
        "stream": False,
        "vllm_xargs": {"diffusion_read_only": 0},
        "user": "me",
        "tools": [],
    },
    "/v1/completions": {
        "prompt": ["ab", [5, 6]],
        "max_tokens": 8,
        "logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "frequency_penalty": 0,
    },
}
UNTOLD = {  # refused for what a schema does not tell
    "chat_template_kwargs", "confidence_threshold", "unmasking_strategy", "denoising_steps", "entropy_bound",
    "chunk_size", "temperature", "top_p", "top_k", "logprob_token_ids", "stop_token_ids", "vllm_xargs",
    "max_completion_tokens",
}  # fmt: skip
UNCHECKED: set[Path] = {("messages", 2, "tool_calls", 0, "function", "arguments")}  # text has to be JSON
BROKEN = object()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(StubEngine(text=StubWriter(reply=written("ab the cab"), width=2))) as running:
        yield running


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """To every value within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from paths(inner, (*at, key))


def changed(body: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy with another value at a path; BROKEN leaves it out."""
    found: Any = copy.deepcopy(body)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    if value is BROKEN:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return dict(found)


def bodies(good: Mapping[str, Any], names: set[str]) -> Iterator[dict[str, Any]]:
    yield dict(good)
    for path in paths(good):
        if path in UNCHECKED or (path[0] in UNTOLD and len(path) == 1):
            continue
        yield changed(good, path, BROKEN)
        yield from (changed(good, path, odd) for odd in ODD)
    for name in sorted(names - good.keys() - UNTOLD):
        yield from (changed(good, (name,), odd) for odd in ODD)
    yield from (dict(good) | {"fild": odd} for odd in (None, 1))


@pytest.mark.parametrize("path", GOOD)
def test_bodies_are_answered_as_the_document_says(server: LiveServer, path: str) -> None:
    document = httpx2.get(f"{server.url}/openapi.json").json()
    operation = document["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    own = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]

    def validator(part: Any) -> Any:
        return jsonschema_rs.validator_for(part | {"components": document["components"]})

    takes, answers = validator(schema), {}
    for status, response in operation["responses"].items():
        answers[int(status)] = {kind: validator(told.get("schema", {})) for kind, told in response["content"].items()}
    counts = {True: 0, False: 0}
    with httpx2.Client(base_url=server.url) as client:
        for body in bodies(GOOD[path], set(own["properties"])):
            reply, is_valid = client.post(path, json=body), takes.is_valid(body)
            if "--max-logprobs" in reply.text:
                continue
            counts[is_valid] += 1
            new = {name: body[name] for name in body if body[name] != GOOD[path].get(name, BROKEN)}
            told = (reply.status_code, json.dumps(new), reply.text)
            assert (reply.status_code in (200, 404)) if is_valid else (reply.status_code in (400, 422)), told
            kind = reply.headers["content-type"].partition(";")[0]
            assert kind in answers[reply.status_code], told
            if kind == "application/json":
                answers[reply.status_code][kind].validate(reply.json())
    assert min(counts.values()) > 50
