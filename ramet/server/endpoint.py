"""Endpoint: one POST route, with what the documentation says of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RametError
from ramet.server.authentication import Authentication
from ramet.server.metrics import Metrics
from ramet.server.models import Models
from ramet.server.plain_route import PlainRoute
from ramet.server.rendering import ErrorBody, render
from ramet.server.served import Served
from ramet.server.settings import ServerSettings


class Endpoint(ABC):
    """A route that reads its requests' bodies by itself. A subclass says what it takes and what it answers, and
    `respond` answers a request. CONTRIBUTING.md has the recipe for a new one."""

    path: ClassVar[str]
    summary: ClassVar[str]
    tag: ClassVar[str]
    name: ClassVar[str] = "respond"  # the beginning of the operation's id
    request: type[BaseModel]
    errors: ClassVar[Mapping[int, str]]  # what a status of an error means
    error_body: ClassVar[type[BaseModel]] = ErrorBody
    render: Callable[[RametError], Response] = staticmethod(render)  # the response for an error

    def __init__(self, engine: Served, models: Models, metrics: Metrics, settings: ServerSettings) -> None:
        self._engine = engine
        self._models = models
        self._metrics = metrics
        self._settings = settings

    def route(self, guard: Authentication) -> PlainRoute:
        """The route, which `guard` lets nobody pass without a key, where the server has one."""
        errors = {status: {"model": self.error_body, "description": words} for status, words in self.errors.items()}
        return PlainRoute(
            self.path,
            self.respond,
            guard,
            self.request,
            render=self.render,
            name=self.name,
            tags=[self.tag],
            methods=["POST"],
            summary=self.summary,
            response_class=Response,
            responses={**errors, **self.responses()},
        )

    @abstractmethod
    def responses(self) -> dict[int | str, dict[str, Any]]:
        """What FastAPI's documentation says of the answers, by status; of errors only where it is not `errors`'."""

    @abstractmethod
    async def respond(self, request: Request) -> Response:
        """Answer a request. An error of the tree in `ramet.errors` becomes its response in `render`'s form."""
