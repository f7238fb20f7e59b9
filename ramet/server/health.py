"""Health: whether the engine works."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from ramet.server.served import Served
from ramet.version import __version__


class HealthReport(BaseModel):
    """`fault` says what is wrong when `status` is not ok."""

    status: Literal["ok", "broken"]
    model: str
    version: str = __version__
    fault: str | None = None


class Health:
    """GET /health: 200 while the engine works, 503 once it is broken. Needs no key."""

    def __init__(self, engine: Served) -> None:
        self._engine = engine

    def router(self) -> APIRouter:
        router = APIRouter(tags=["operation"])
        router.add_api_route(
            "/health",
            self.report,
            methods=["GET"],
            summary="Is it working?",
            responses={503: {"model": HealthReport, "description": "The engine is broken; `fault` says why"}},
        )
        return router

    async def report(self, response: Response) -> HealthReport:
        fault = self._engine.fault
        if fault is None:
            return HealthReport(status="ok", model=self._engine.name)
        response.status_code = 503
        return HealthReport(status="broken", model=self._engine.name, fault=str(fault) or type(fault).__name__)
