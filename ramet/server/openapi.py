"""The OpenAPI document, with the request model that the routes read by themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ramet.request import DecisionRequest

_REFERENCE = "#/components/schemas/{model}"


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`. FastAPI knows only the bodies that it parses; DecisionRequest is added."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schema = DecisionRequest.model_json_schema(ref_template=_REFERENCE)
    schemas = document["components"]["schemas"]
    schemas.update(schema.pop("$defs"))
    schemas["DecisionRequest"] = schema
    return document
