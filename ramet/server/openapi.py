"""The OpenAPI document, with the request models that the routes read by themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from ramet.server.plain_route import PlainRoute
from ramet.server.rendering import ErrorBody

_REFERENCE = "#/components/schemas/{model}"


def openapi_document(app: FastAPI, *, keyed: bool) -> dict[str, Any]:
    """The document of `app`. FastAPI knows only the bodies that it parses itself, so those of plain routes are added.
    keyed: whether guarded routes want a key."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document["components"]["schemas"]
    for route in app.routes:
        if isinstance(route, PlainRoute):
            _add(schemas, route.request_model)
    _add(schemas, ErrorBody)
    for operations in document["paths"].values():
        for operation in operations.values():
            _tell_key(operation, keyed)
    if not keyed:
        del document["components"]["securitySchemes"]
    return document


def _add(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema


def _tell_key(operation: dict[str, Any], keyed: bool) -> None:
    """That an operation wants a key, and how it answers without; or that none does."""
    if not keyed:
        operation.pop("security", None)
        operation["responses"].pop("401", None)
    elif "security" in operation and "401" not in operation["responses"]:
        content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=ErrorBody.__name__)}}}
        operation["responses"]["401"] = {"description": "The key is wrong or missing", "content": content}
