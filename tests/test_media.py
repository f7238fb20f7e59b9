"""Media beside and inside what is asked: refused by name wherever a request comes in, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written
from fixtures.tiny_engine import tiny_engine

from ramet import media
from ramet.errors import InvalidRequest
from ramet.request import DecisionRequest
from ramet.server.openai.request import ChatRequest, CompletionRequest

URL = "data:image/png;base64,iVBORw0KGgo="
NOUL = {"type": "noul", "instructions": "Is it red?"}
PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
    {"type": "image_url", "image_url": "https://a.example/b.png"},
    {"type": "input_image", "image_url": URL},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
    {"type": "image", "format": "png", "data_base64": "iVBO"},
    {"type": "image", "url": "https://a.example/b.png"},
    {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
    {"type": "audio_url", "audio_url": {"url": "https://a.example/b.wav"}},
    {"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}},
    {"type": "video", "frames": ["a.png"], "fps": 1},
    {"type": "file", "file": {"file_data": "JVBE", "filename": "a.pdf"}},
    {"type": "input_file", "file_id": "file-1"},
    {"type": "document", "source": {"type": "base64", "data": "JVBE"}},
]
HONEST: list[Any] = [
    {"type": "image", "title": "Sunset", "votes": 3},
    {"type": "image", "url": None, "caption": "no longer there"},
    {"type": "file", "path": "src/main.py", "size": 120},
    {"type": "file", "file": "main.py"},
    {"type": "text", "image": "a poster"},
    {"type": "video_call", "url": "https://meet.example/1"},
    {"type": ["image"], "url": "x"},
    {"image_url": "https://a.example/b.png", "images": ["a.png"]},
    f"The logo is {URL}, as the page has it.",
    "data: image/png is what the header said",
    "data:text/plain,hello",
]
EMPTY: list[Any] = [None, [], {}, ""]


def body(**fields: Any) -> dict[str, Any]:
    return {"state": "The parcel.", "questions": {"q": NOUL}, **fields}


def faults(data: Any, parse: Any = DecisionRequest.parse) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequest) as caught:
        parse(data)
    return [(".".join(map(str, problem.loc)), problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize("name", [*media.FIELDS, "Images", "x_image", "image-url", "VIDEO"])
def test_fields_beside_a_state(name: str) -> None:
    for value in (["a"], {"a": 1}, "a", 1, True):
        ((place, why),) = faults(body(**{name: value}))
        assert place == name
        assert media.WHY in why
    for value in EMPTY:
        assert DecisionRequest.parse(body(**{name: value})).state == "The parcel."


@pytest.mark.parametrize("part", [*PARTS, URL, f" {URL}\n", "data:audio/mpeg;codecs=mp3;base64,SUQz"], ids=repr)
def test_parts_anywhere_in_a_decision(part: Any) -> None:
    choice = {"type": "choice", "criteria": {"a": part, "b": None}}
    places = {
        "state": body(state=part),
        "state.seen.0": body(state={"seen": [part]}),
        "questions.q.instructions": body(questions={"q": NOUL | {"instructions": part}}),
        "questions.q.instructions.1": body(questions={"q": NOUL | {"instructions": ["Red?", part]}}),
        "questions.q.criteria.true": body(questions={"q": NOUL | {"criteria": {"true": part}}}),
        "questions.q.criteria.a": body(questions={"q": choice}),
        "questions.q.criteria.1": body(questions={"q": {"type": "score", "criteria": ["low", part]}}),
    }
    for place, data in places.items():
        ((found, why),) = faults(data)
        assert found == place
        assert media.WHY in why


@pytest.mark.parametrize("value", HONEST, ids=repr)
def test_honest_json_is_no_media(value: Any) -> None:
    for state in (value, {"files": [value]}, [value]):
        assert DecisionRequest.parse(body(state=state)).state == state


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["type"])
def test_parts_of_a_conversation(part: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    for message in (
        {"content": content},
        {"content": "Look.", "images": [URL]},
        {"content": "Look.", "audio": {"id": "1"}},
    ):
        ((place, why),) = faults({"messages": [{"role": "user", **message}]}, ChatRequest.parse)
        assert place.startswith("messages.0.")
        assert media.WHY in why


@pytest.mark.parametrize("name", media.FIELDS)
def test_fields_beside_a_prompt_or_messages(name: str) -> None:
    for parse, least in ((ChatRequest.parse, {"messages": [{"role": "user", "content": "a"}]}),
                         (CompletionRequest.parse, {"prompt": "a"})):  # fmt: skip
        ((place, why),) = faults(least | {name: ["a"]}, parse)
        assert place == name
        assert media.WHY in why
        for value in EMPTY:
            parse(least | {name: value})


def test_a_prompt_that_is_a_picture() -> None:
    ((place, why),) = faults({"prompt": ["a", URL]}, CompletionRequest.parse)
    assert place == "prompt.1"
    assert media.WHY in why


def test_over_http(serve: Serve) -> None:
    engine = StubEngine(text=StubWriter(reply=written("a")))
    url = serve(engine).url
    for data, place in ((body(images=[URL]), "images"), (body(state=PARTS[0]), "state")):
        reply = httpx2.post(f"{url}/v1/systemone", json=data)
        assert reply.status_code == 422
        assert reply.json()["detail"][0]["loc"] == ["body", place]
    chat = {"messages": [{"role": "user", "content": [PARTS[0]]}]}
    for path, data, place in (("chat/completions", chat, "messages.0.content.0"),
                              ("completions", {"prompt": "a", "images": [URL]}, "images")):  # fmt: skip
        reply = httpx2.post(f"{url}/v1/{path}", json=data)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == place
    assert not engine.received
    assert not engine.text.received  # type: ignore[union-attr]


def test_in_python() -> None:
    with tiny_engine() as engine:
        for more in ({"images": [URL]}, {"state": PARTS[0]}, {"state": [json.loads(json.dumps(PARTS[2]))]}):
            with pytest.raises(InvalidRequest, match="not read here yet"):
                engine.decide(**{"state": "s", "questions": {"q": NOUL}} | more)
        for more in ({"samples_": 2}, {"modle": "x"}, {"verbose": True}):
            with pytest.raises(InvalidRequest, match=r"did you mean|unknown keyword; known: .*debias"):
                engine.decide(state="s", questions={"q": NOUL}, **more)
        assert engine.stats()["rounds_total"] == 0
