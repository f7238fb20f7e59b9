"""Health: whether the engine works."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from ramet.server.served import Served
from ramet.version import __version__

PATHS = ("/health", "/")  # the second for probes that know no path


class HealthReport(BaseModel):
    """`fault` says what is wrong when `status` is broken."""

    status: Literal["ok", "loading", "broken"]
    model: str
    version: str = __version__
    fault: str | None = None


class Health:
    """GET /health: 200 while the engine works, 503 once it is broken. Needs no key.

    GET / and OPTIONS, which probes such as HAProxy's send, get the same answer.
    """

    def __init__(self, engine: Served) -> None:
        self._engine = engine

    def router(self) -> APIRouter:
        router = APIRouter(tags=["operation"])
        router.add_api_route(
            "/health",
            self.report,
            methods=["GET"],
            summary="Is it working?",
            responses={
                503: {
                    "model": HealthReport,
                    "description": "The engine is broken, and `fault` says why; or the model is being loaded",
                }
            },
        )
        router.add_api_route("/health", self.report, methods=["OPTIONS"], include_in_schema=False)
        router.add_api_route("/", self.report, methods=["GET", "OPTIONS"], include_in_schema=False)
        return router

    async def report(self, response: Response) -> HealthReport:
        fault = self._engine.fault
        if fault is None:
            return HealthReport(status="ok", model=self._engine.name)
        response.status_code = 503
        return HealthReport(status="broken", model=self._engine.name, fault=str(fault) or type(fault).__name__)
