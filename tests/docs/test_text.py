"""docs/text.md agrees with the routes for text: fields, parameters, answers, statuses, options; its examples run."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written
from fixtures.doc_page import examples, section, sections
from fixtures.live_server import LiveServer, live_server
from pydantic import SecretStr, TypeAdapter

from ramet.cli.peer_names import DIFFUSION
from ramet.denoise.unmask_policy import Strategy
from ramet.errors import (
    CheckpointError,
    EngineFault,
    NotSupported,
    Overloaded,
    RametError,
    RequestTooLong,
    UnknownModel,
)
from ramet.server import ServerSettings, create_app
from ramet.server.errors import BodyTimeout, BodyTooLarge, MalformedBody, Unauthenticated, Unavailable, UnsupportedBody
from ramet.server.openai import answer
from ramet.server.openai.errors import render
from ramet.server.openai.fields import MAX_PROMPTS
from ramet.server.openai.parameters import NOT_TAKEN, REFUSED, WITHOUT_EFFECT
from ramet.server.openai.request import ChatRequest, CompletionRequest
from ramet.server.openai.text_request import MAX_LABELS, DiffusionArguments

PAGE = "docs/text.md"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture
def canvases(serve: Serve) -> LiveServer:
    """A stub of a model with canvases, which nobody has at hand."""
    return serve(StubEngine(name="diffusiongemma", text=StubWriter(reply=written("a b"), width=2)))


@pytest.fixture
def smollm2() -> Iterator[LiveServer]:
    pytest.importorskip("torch")
    from ramet.engine.engine import Engine
    from ramet.weights.locate import locate

    try:
        locate("smollm2")
    except CheckpointError as error:
        pytest.skip(str(error))
    with Engine.load("smollm2", dtype="float32") as engine, live_server(engine) as server:
        yield server


def words(heading: str) -> set[str]:
    return {word for code in section(PAGE, heading).code for word in re.findall(r"\w+", code)}


def test_fields_are_told() -> None:
    rows = section(PAGE, "Fields").rows
    told = {(name, of) for name, of, _, _ in (row for row in rows if len(row) == 4)}
    own = {"chat": set(ChatRequest.model_fields), "completions": set(CompletionRequest.model_fields)}
    shared = {name for name in own["chat"] & own["completions"] if name != "logprobs"}
    expected = {(name, "both") for name in shared}
    expected |= {(name, of) for of, names in own.items() for name in names - shared}
    assert told == expected
    labels = next(row for row in rows if row[0] == "logprob_token_ids")
    assert labels[2] == f"up to {MAX_LABELS} ids"
    assert f"up to {MAX_PROMPTS} of either" in section(PAGE, "Completions").prose


def test_parameters_are_told() -> None:
    s = section(PAGE, "Fields")
    told = {name: row[1] for row in s.rows if len(row) == 2 for name in row[0].split(", ")}
    assert set(told) == set(REFUSED)
    for name, passes in told.items():
        values = [] if passes == "nothing" else json.loads(f"[{passes}]")
        assert values == list(REFUSED[name].neutral), name
    assert words("Fields") >= WITHOUT_EFFECT


def test_what_models_do_not_take_is_told() -> None:
    rows = section(PAGE, "Three ways to write").rows
    assert {row[0] for row in rows} == {name for names in NOT_TAKEN.values() for name in names}
    for name, *told in rows:
        for kind, takes in zip(("canvas", "masks", "next"), told, strict=True):
            assert (takes == "yes") == (name not in NOT_TAKEN[kind]), (name, kind)
            passes = json.loads(f"[{takes.removeprefix('no').strip(' ()')}]") if takes != "yes" else []
            assert takes == "yes" or passes == list(NOT_TAKEN[kind][name].neutral), (name, kind)
    assert [row[0] for row in section(PAGE, "Masks").rows] == list(get_args(Strategy))


def test_arguments_of_reads_are_told() -> None:
    assert [row[0] for row in section(PAGE, "Structured reads").rows] == list(DiffusionArguments.model_fields)


@pytest.mark.parametrize("model", [each for each in vars(answer).values() if inspect.getmodule(each) is answer])
def test_answers_are_told(model: Any) -> None:
    told = words("Answers") | words("Log-probabilities") | words("Streams")
    assert set(TypeAdapter(model).json_schema(mode="serialization")["properties"]) <= told


def test_statuses_are_told() -> None:
    rows = section(PAGE, "Errors").rows
    told = {int(status): (row[1], row[2]) for row in rows for status in row[0].split(", ")}
    errors: list[RametError] = [
        MalformedBody(""), RequestTooLong(""), Unauthenticated(""), UnknownModel(""), BodyTimeout(""), BodyTooLarge(""),
        UnsupportedBody(""), Overloaded(""), RametError(""), NotSupported(""), EngineFault(""), Unavailable(""),
    ]  # fmt: skip
    for error in errors:
        reply = render(error)
        status, body = reply.status_code, json.loads(bytes(reply.body))
        kind, code = told[status]
        assert body["error"]["type"] == kind
        assert body["error"]["code"] in code
    responses = create_app(StubEngine(), ServerSettings(api_key=SecretStr("key"))).openapi()["paths"][
        "/v1/completions"
    ]["post"]["responses"]
    assert {str(status) for status in told} == set(responses) - {"200"}


def test_options_are_told() -> None:
    """Those of serve lines have a page of their own, which is generated."""
    assert words("Serving") >= set(DIFFUSION)
    assert f"{ServerSettings().max_logprobs} by default" in section(PAGE, "Log-probabilities").prose


def test_shell(smollm2: LiveServer, canvases: LiveServer) -> None:
    """What SmolLM2 says, word for word; of canvases what an answer consists of."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    found = examples(PAGE, "sh")
    assert len(found) >= 5
    for s, block, shown in found:
        is_real = s.heading not in ("Structured reads", "Errors")
        script = block.text.replace(ADDRESS, (smollm2 if is_real else canvases).url)
        environment = os.environ | {"no_proxy": "127.0.0.1"}
        ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, block.place
        if shown is None:
            assert "error" not in json.loads(ran.stdout), (block.place, ran.stdout)
            continue
        ours, theirs = (_parts(text) for text in (ran.stdout, shown.text))
        made = _lasting if is_real else _outline
        assert [*map(made, ours)] == [*map(made, theirs)], block.place


def test_python(smollm2: LiveServer) -> None:
    ((_, block, _),) = examples(PAGE, "python")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(block.text.replace(ADDRESS, smollm2.url), block.place, "exec"), {})
    assert out.getvalue() == "The capital of France is Paris."


def test_links_lead_somewhere() -> None:
    text = "".join(s.prose for s in sections(PAGE))
    anchors = {re.sub(r"[^\w\- ]", "", s.heading.lower()).replace(" ", "-") for s in sections(PAGE)}
    for link in re.findall(r"\]\(#([^)\s]+)\)", text):
        assert link in anchors


def _parts(text: str) -> list[Any]:
    """JSON values: one, or those of events."""
    if not text.startswith("data: "):
        return [json.loads(text)]
    lines = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def _lasting(value: Any) -> Any:
    """Less what differs from one time to the next."""
    return value if value == "[DONE]" else {k: v for k, v in value.items() if k not in ("id", "created")}


def _outline(value: Any, exact: bool = False) -> Any:
    """Keys and types; of an error the values themselves."""
    if isinstance(value, dict):
        return {key: _outline(inner, exact or key == "error") for key, inner in value.items()}
    if isinstance(value, list):
        return [_outline(inner, exact) for inner in value]
    return value if exact or value == "[DONE]" else type(value)
