"""Metrics: what the server and its engine count, in Prometheus' text format."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ramet.request import Usage
from ramet.server.openai.tally import Tally
from ramet.server.served import Served

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class _EngineStats(Collector):
    """The engine's own figures, read when they are asked for."""

    def __init__(self, engine: Served) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        for key, value in self._engine.stats().items():
            name = "ramet_engine_" + re.sub(r"\W", "_", key, flags=re.ASCII)
            yield GaugeMetricFamily(name, f"The engine's {key}", value=value)


class Metrics:
    """GET /metrics, and the counters behind it. Each server has its own registry."""

    def __init__(self, engine: Served) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineStats(engine))
        self._requests = Counter(
            "ramet_http_requests", "Requests by route and status", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "ramet_http_request_seconds",
            "From the first byte to the answer's last, by route",
            ("route",),
            registry=self._registry,
            buckets=BUCKETS_S,
        )
        self._questions = Counter("ramet_questions", "Questions answered", registry=self._registry)
        self._tokens = Counter("ramet_input_tokens", "Input tokens of answered requests", registry=self._registry)
        self._cached = Counter(
            "ramet_cached_tokens", "Of the input tokens, those not computed again", registry=self._registry
        )

        self._written = Counter(
            "ramet_output_tokens", "Tokens of replies, as far as they were written", registry=self._registry
        )
        self._steps = Counter(
            "ramet_denoise_steps", "Passes of replies, counted for each reply in them", registry=self._registry
        )
        self._canvases = Counter("ramet_denoise_canvases", "Finished canvases of replies", registry=self._registry)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Every request, whatever became of it."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_answers(self, n_questions: int, usage: Usage) -> None:
        """An answered decision."""
        self._questions.inc(n_questions)
        self._tokens.inc(usage.input_tokens)
        self._cached.inc(usage.x_cached_tokens)

    def count_text(self, replies: Iterable[Tally]) -> None:
        """Replies, whole or given up. Prompts count once something is written."""
        for reply in replies:
            if reply.n_steps:
                self._tokens.inc(reply.n_prompt)
                self._cached.inc(reply.n_cached)
            self._written.inc(reply.n_tokens)
            self._steps.inc(reply.n_steps)
            self._canvases.inc(reply.n_canvases)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["operation"])
        router.add_api_route(
            "/metrics",
            self.text,
            methods=["GET"],
            summary="Counters, in Prometheus' text format",
            response_class=Response,
            responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        )
        return router

    async def text(self) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")
