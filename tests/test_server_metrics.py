"""Metrics: what is counted, as a Prometheus reader sees it."""

from __future__ import annotations

import httpx2
from conftest import Serve
from prometheus_client.parser import text_string_to_metric_families
from stub_engine import StubEngine

QUESTION = {"type": "noul", "instructions": "Is it late?"}


def samples(url: str) -> dict[tuple[str, ...], float]:
    reply = httpx2.get(f"{url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_requests_tokens_and_the_engine_are_counted(serve: Serve) -> None:
    url = serve(StubEngine()).url
    body = {"state": "x", "questions": {"a": QUESTION, "b": QUESTION}}
    usages = [httpx2.post(f"{url}/v1/systemone", json=body).json()["usage"] for _ in range(2)]
    httpx2.post(f"{url}/v1/systemone", json={})
    httpx2.get(f"{url}/v1/models/a/b")
    httpx2.get(f"{url}/anything/at/all")
    found = samples(url)
    assert found["ramet_http_requests_total", "/v1/systemone", "200"] == 2
    assert found["ramet_http_requests_total", "/v1/systemone", "422"] == 1
    assert found["ramet_http_requests_total", "/v1/models/{name:path}", "404"] == 1
    assert found["ramet_http_requests_total", "unknown", "404"] == 1
    assert found["ramet_http_request_seconds_count", "/v1/systemone"] == 3
    assert found["ramet_http_request_seconds_bucket", "+Inf", "/v1/systemone"] == 3
    assert found[("ramet_questions_total",)] == 4
    assert found[("ramet_input_tokens_total",)] == sum(usage["input_tokens"] for usage in usages) > 0
    assert found[("ramet_cached_tokens_total",)] == 2
    assert found[("ramet_engine_queue_length",)] == 0
    assert found[("ramet_engine_requests",)] == 2


def test_each_server_counts_for_itself(serve: Serve) -> None:
    first, second = serve(StubEngine()).url, serve(StubEngine()).url
    httpx2.get(f"{first}/health")
    assert samples(first)["ramet_http_requests_total", "/health", "200"] == 1
    assert ("ramet_http_requests_total", "/health", "200") not in samples(second)
