"""Metrics: what the server and its engine count, in Prometheus' text format and in OpenMetrics'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from ramet.decision import Usage
from ramet.server.engine_metrics import EngineMetrics
from ramet.server.openai.reply_counts import ReplyCounts
from ramet.server.served import Served

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TOKEN_BUCKETS_S = (0.0001, 0.0002, 0.0005, *BUCKETS_S[:11])
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"


class _Registry(CollectorRegistry):
    """It leaves out the times at which series began: each would be one more series, and nobody reads them."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class Metrics:
    """GET /metrics, and the counters behind it. Each server has its own registry."""

    def __init__(self, engine: Served) -> None:
        self._registry = _Registry()
        self._registry.register(EngineMetrics(engine))
        self._requests = self._counter("http_requests", "requests, by route and status", "route", "status")
        self._seconds = self._histogram(
            "http_request_seconds", "histogram from the first byte to the answer's last, by route", BUCKETS_S, "route"
        )
        self._questions = self._counter("questions", "questions answered")
        self._tokens = self._counter("input_tokens", "input tokens of answered requests")
        self._cached = self._counter("cached_tokens", "input tokens that were not computed again")
        self._written = self._counter("output_tokens", "tokens of replies, as far as they were written")
        self._first = self._histogram(
            "time_to_first_token_seconds", "histogram from a request's being read to a reply's first tokens", BUCKETS_S
        )
        self._each = self._histogram(
            "time_per_output_token_seconds",
            "histogram of the time for each token of a reply behind its first ones",
            TOKEN_BUCKETS_S,
        )
        self._steps = self._counter("denoise_steps", "passes of replies, counted for each reply in them")
        self._canvases = self._counter("denoise_canvases", "canvases of replies that were finished")

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request, however it ended."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_answers(self, n_questions: int, usage: Usage) -> None:
        """Count an answered decision."""
        self._questions.inc(n_questions)
        self._tokens.inc(usage.input_tokens)
        self._cached.inc(usage.x_cached_tokens)

    def count_text(self, replies: Iterable[ReplyCounts]) -> None:
        """Count replies, whole or given up. A prompt counts once its reply has a token."""
        for reply in replies:
            if reply.n_steps:
                self._tokens.inc(reply.n_prompt)
                self._cached.inc(reply.n_cached)
            self._written.inc(reply.n_tokens)
            self._steps.inc(reply.n_steps)
            self._canvases.inc(reply.n_canvases)
            if (first := reply.first_s) is not None:
                self._first.observe(first)
            if (each := reply.token_s) is not None:
                self._each.observe(each)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["operation"])
        content = {"schema": {"type": "string"}}
        router.add_api_route(
            "/metrics",
            self.text,
            methods=["GET"],
            summary="Counters, in Prometheus' text format, or in OpenMetrics' where `accept` names it",
            response_class=Response,
            responses={200: {"content": {"text/plain": content, OPEN_METRICS: content}}},
        )
        return router

    async def text(self, request: Request) -> Response:
        if OPEN_METRICS in request.headers.get("accept", ""):
            opened = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return Response(opened, media_type=openmetrics.CONTENT_TYPE_LATEST)
        return Response(generate_latest(self._registry), media_type=TEXT)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"ramet_{name}", help_text, labels, registry=self._registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"ramet_{name}", help_text, labels, registry=self._registry, buckets=buckets)
