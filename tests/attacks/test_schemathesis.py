"""Schemathesis over the server's own document: whatever it makes is answered as the document says, at a bounded price.

RAMET_ATTACK_EXAMPLES=20000 looks for an hour where the default takes some seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import schemathesis
from attacks.bounded import bounded
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter
from fixtures.live_server import LiveServer, live_server
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

EXAMPLES = settings(max_examples=int(os.environ.get("RAMET_ATTACK_EXAMPLES", "40")), database=None)
MOST_MIB = 256
POSTS, GETS = ("/v1/systemone", "/v1/chat/completions", "/v1/completions"), ("/v1/models", "/health", "/metrics")
UNTOLD = [positive_data_acceptance]  # what a kind of model does not take, and ids beyond its own, no schema tells
load_all_checks()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(StubEngine(text=StubWriter())) as server:
        yield server


@pytest.fixture(scope="module")
def document(server: LiveServer) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", POSTS)
def test_bodies(server: LiveServer, document: BaseSchema, path: str, mode: GenerationMode, data: st.DataObject) -> None:
    """Those that the document takes, and others."""
    case = data.draw(document[path]["POST"].as_strategy(generation_mode=mode))
    with bounded(MOST_MIB):
        case.call_and_validate(base_url=server.url, excluded_checks=UNTOLD)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("path", GETS)
def test_what_takes_no_body(server: LiveServer, document: BaseSchema, path: str, data: st.DataObject) -> None:
    data.draw(document[path]["GET"].as_strategy()).call_and_validate(base_url=server.url)
