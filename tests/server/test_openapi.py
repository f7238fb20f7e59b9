"""OpenAPI: the document tells what the server does."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from pydantic import BaseModel, SecretStr

from ramet import media
from ramet.request import DecisionRequest
from ramet.server.app import create_app
from ramet.server.errors import STATUSES
from ramet.server.openai.answer import ChatCompletion, Completion
from ramet.server.openai.parameters import REFUSED, WITHOUT_EFFECT
from ramet.server.openai.request import ChatRequest, CompletionRequest
from ramet.server.settings import ServerSettings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(StubEngine(), ServerSettings(api_key=SecretStr("key"))).openapi()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [ref for inner in value.values() for ref in references(inner)]
        return [ref for inner in value for ref in references(inner)] if isinstance(value, list) else []

    found = set(references(document))
    assert "#/components/schemas/DecisionRequest" in found
    assert {ref.removeprefix("#/components/schemas/") for ref in found} <= set(document["components"]["schemas"])


def test_the_request_is_documented_with_its_extras(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["DecisionRequest"]
    assert set(schema["properties"]) == set(DecisionRequest.model_fields)
    assert schema["required"] == ["state", "questions"]
    assert all(schema["properties"][name]["description"] for name in schema["properties"])
    models = {"Noul", "Choice", "Score", "NoulAnswer", "ChoiceAnswer", "ScoreAnswer"}
    assert models <= set(document["components"]["schemas"])


def test_every_status_in_the_table_that_a_client_can_see_is_documented(document: dict[str, Any]) -> None:
    responses = document["paths"]["/v1/systemone"]["post"]["responses"]
    seen = {str(row.status) for row in STATUSES.values()} - {"405", "499"}
    assert set(responses) == seen - {"501"} | {"200"}
    assert responses["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Decision"}


@pytest.mark.parametrize(
    ("path", "request_model", "answer"),
    [("/v1/chat/completions", ChatRequest, ChatCompletion), ("/v1/completions", CompletionRequest, Completion)],
)
def test_the_routes_for_text_are_documented(
    document: dict[str, Any], path: str, request_model: type[BaseModel], answer: type[BaseModel]
) -> None:
    operation = document["paths"][path]["post"]
    seen = {str(row.text_status or row.status) for row in STATUSES.values()} - {"405", "499"}
    assert set(operation["responses"]) == seen | {"200"}
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": f"#/components/schemas/{request_model.__name__}"}
    reply = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply == {"$ref": f"#/components/schemas/{answer.__name__}"}
    schemas = document["components"]["schemas"]
    beside = WITHOUT_EFFECT | REFUSED.keys() | set(media.FIELDS)
    assert set(schemas[request_model.__name__]["properties"]) == set(request_model.model_fields) | beside
    assert "DiffusionArguments" in schemas


def test_keys_are_documented(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    guarded = [each for each in operations if "security" in each]
    assert document["paths"]["/v1/systemone"]["post"] in guarded
    assert document["paths"]["/health"]["get"] not in guarded
    assert guarded == [each for each in operations if "401" in each["responses"]]
    assert all(each["security"] == [{"HTTPBearer": []}] for each in guarded)


def test_no_key_is_documented_where_none_is_wanted() -> None:
    document = create_app(StubEngine()).openapi()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert not any("security" in each or "401" in each["responses"] for each in operations)
    assert "securitySchemes" not in document["components"]


def test_it_is_served(serve: Serve) -> None:
    url = serve(StubEngine()).url
    assert "/v1/systemone" in httpx2.get(f"{url}/openapi.json").json()["paths"]
    assert "text/html" in httpx2.get(f"{url}/docs").headers["content-type"]
