"""The OpenAPI document, with the request models that the routes read by themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ramet.request import DecisionRequest
from ramet.server.openai.request import ChatRequest, CompletionRequest

_REFERENCE = "#/components/schemas/{model}"


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`. FastAPI knows only the bodies that it parses; the routes' own are added."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document["components"]["schemas"]
    for model in (DecisionRequest, ChatRequest, CompletionRequest):
        schema = model.model_json_schema(ref_template=_REFERENCE)
        schemas.update(schema.pop("$defs"))
        schemas[model.__name__] = schema
    return document
