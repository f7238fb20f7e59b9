"""The recipe of CONTRIBUTING.md for a new route: one file with an endpoint, and its name in ROUTES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from pydantic import BaseModel, Field, SecretStr, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ramet.problems import FewFields, invalid
from ramet.server import ServerSettings, create_app, routes
from ramet.server.endpoint import Endpoint
from ramet.server.errors import Unavailable
from ramet.server.parse_body import parse_body
from ramet.server.unavailable import unavailable


class LengthRequest(FewFields):
    """A text."""

    text: str = Field(description="Whose letters are counted.")

    @classmethod
    def parse(cls, data: Any) -> LengthRequest:
        """Check JSON values. Raises InvalidRequest that lists every problem."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise invalid(error) from error


class LengthAnswer(BaseModel):
    """How long it is."""

    n_letters: int


class Length(Endpoint):
    """A route that counts the letters of a text."""

    path = "/v1/length"
    summary = "Count the letters of a text"
    tag = "toys"
    request = LengthRequest
    errors: ClassVar[Mapping[int, str]] = {401: "The key is wrong or missing"}

    def responses(self) -> dict[int | str, dict[str, Any]]:
        return {200: {"model": LengthAnswer, "description": "The number of letters"}}

    async def respond(self, request: Request) -> Response:
        """Counts what Python counts."""
        wanted = await parse_body(request, self._settings, LengthRequest.parse)
        answer = LengthAnswer(n_letters=len(wanted.text))
        return Response(answer.model_dump_json(), media_type="application/json")


@pytest.fixture(autouse=True)
def with_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ROUTES", (*routes.ROUTES, Length))


def test_it_answers(serve: Serve) -> None:
    reply = httpx2.post(serve(StubEngine()).url + "/v1/length", json={"text": "four"})
    assert (reply.status_code, reply.json()) == (200, {"n_letters": 4})


def test_a_wrong_field_is_named(serve: Serve) -> None:
    reply = httpx2.post(serve(StubEngine()).url + "/v1/length", json={"text": 4})
    assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["body", "text"])


def test_it_wants_the_key(serve: Serve) -> None:
    url = serve(StubEngine(), ServerSettings(api_key=SecretStr("key"))).url + "/v1/length"
    assert httpx2.post(url, json={"text": "four"}).status_code == 401
    assert httpx2.post(url, json={"text": "four"}, headers={"authorization": "Bearer key"}).status_code == 200


def test_it_is_counted(serve: Serve) -> None:
    server = serve(StubEngine())
    httpx2.post(server.url + "/v1/length", json={"text": "four"})
    assert 'ramet_http_requests_total{route="/v1/length",status="200"} 1.0' in httpx2.get(server.url + "/metrics").text


def test_it_is_documented() -> None:
    document = create_app(StubEngine()).openapi()
    operation = document["paths"]["/v1/length"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert (operation["summary"], schema) == (Length.summary, {"$ref": "#/components/schemas/LengthRequest"})
    assert {"LengthRequest", "LengthAnswer"} <= set(document["components"]["schemas"])


def test_its_errors_have_its_form_while_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Length, "render", staticmethod(lambda error: Response("toy", 503)))
    assert unavailable("/v1/length", Unavailable("")).body == b"toy"
    assert unavailable("/v1/systemone", Unavailable("")).body != b"toy"
