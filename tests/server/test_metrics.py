"""Metrics: what is counted, as a Prometheus reader sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fakes.stub_writer import StubWriter, written
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

QUESTION = {"type": "noul", "instructions": "Is it late?"}
OPEN_METRICS = "application/openmetrics-text"
PROMETHEUS = f"{OPEN_METRICS};version=1.0.0;q=0.6,{OPEN_METRICS};version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*"
Samples = dict[tuple[str, ...], float]


def samples(url: str, accept: str = "*/*") -> Samples:
    reply = httpx2.get(f"{url}/metrics", headers={"accept": accept})
    kind = f"{OPEN_METRICS}; version=1.0.0" if OPEN_METRICS in accept else "text/plain; version=0.0.4"
    assert reply.headers["content-type"].startswith(kind)
    return sampled((open_metrics_families if OPEN_METRICS in accept else text_string_to_metric_families)(reply.text))


def sampled(families: Iterable[Metric]) -> Samples:
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


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
    assert found[("ramet_engine_open_requests",)] == 0
    assert found[("ramet_engine_requests_total",)] == 2


def test_each_server_counts_for_itself(serve: Serve) -> None:
    first, second = serve(StubEngine()).url, serve(StubEngine()).url
    httpx2.get(f"{first}/health")
    assert samples(first)["ramet_http_requests_total", "/health", "200"] == 1
    assert ("ramet_http_requests_total", "/health", "200") not in samples(second)


def test_counters_are_counters_and_each_metric_says_what_it_is(serve: Serve) -> None:
    url = serve(StubEngine()).url
    httpx2.get(f"{url}/health")
    text = httpx2.get(f"{url}/metrics").text
    kinds, helps = (dict(re.findall(rf"^# {what} (\w+) (.*)", text, re.MULTILINE)) for what in ("TYPE", "HELP"))
    assert len(kinds) > 10
    assert set(helps) == set(kinds)
    assert all(helps.values())
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
    assert "_created" not in text


def test_open_metrics_are_sent_to_whom_asks_for_them(serve: Serve) -> None:
    url = serve(StubEngine()).url
    for path in ("/health", "/metrics"):
        httpx2.get(url + path)
    plain, opened = samples(url, "text/plain"), samples(url, PROMETHEUS)
    assert set(plain) == set(opened)
    assert "_created" not in httpx2.get(f"{url}/metrics", headers={"accept": PROMETHEUS}).text


def test_sizes_of_an_engine_are_histograms(serve: Serve) -> None:
    """The stub's: two rounds of one request, one of three, and one of five thousand."""
    found = samples(serve(StubEngine()).url)
    ends = ["1.0", "2.0", "4.0", "512.0", "1024.0", "+Inf"]
    assert [found["ramet_engine_round_requests_bucket", end] for end in ends] == [2, 2, 3, 3, 3, 4]
    assert found[("ramet_engine_round_requests_count",)] == 4
    assert found[("ramet_engine_round_requests_sum",)] == 5005


@pytest.mark.parametrize("stream", [False, True])
def test_times_of_replies_are_counted(serve: Serve, stream: bool) -> None:
    """Of each prompt with a first token, and of those with more behind it."""
    writer = StubWriter(reply=written("ab the cab"), kind="next")
    writer.replies = {(5,): writer.reply[:1]}
    url = serve(StubEngine(text=writer)).url
    asked = {"prompt": [[5], [6]], "max_tokens": 64, "stream": stream}
    httpx2.post(f"{url}/v1/completions", json=asked)
    found = samples(url)
    assert found[("ramet_output_tokens_total",)] == 1 + len(writer.reply)
    for name, n in (("time_to_first_token", 2), ("time_per_output_token", 1)):
        counts = [v for key, v in found.items() if key[0] == f"ramet_{name}_seconds_bucket"]
        assert found[f"ramet_{name}_seconds_count",] == counts[-1] == n
        assert all(a <= b for a, b in pairwise(counts))
