"""Many clients at once, among them some that fail and some that hang up: all are answered, and nothing stays behind.

RAMET_LOAD_SECONDS sets how long the first test's clients go on; `pytest -s` shows its figures.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
from fixtures.live_server import LiveServer, live_server
from fixtures.tiny_engine import tiny_engine
from fixtures.waiting import wait_until
from oracles.answers import assert_close

from ramet.engine import Engine
from ramet.tree import Read, Segment, Tree

LOAD_S = float(os.environ.get("RAMET_LOAD_SECONDS", "8"))
N_CLIENTS = 32
KINDS = ("answered", "refused", "too_long", "hung_up", "full queue")
MAX_GROWTH_MIB = 64  # of resident memory, once every kind of request has been seen many times
MAX_REQUEST_TOKENS = 12_000
ATOL = {"qwen3": 1e-5, "qwen3_5": 1e-4}  # a recurrent state collects what rounding its rows meet

NOUL = {"type": "noul", "instructions": "Is it late?"}
CHOICE = {"type": "choice", "instructions": "Where?", "criteria": {"here": None, "there, far away": "a long way"}}
SCORE = {"type": "score", "instructions": "How late?", "criteria": ["not", "a day", "a week"]}


def request(n_words: int, seed: int = 0, **fields: Any) -> dict[str, Any]:
    """A request about some words; the same seed gives the same state."""
    state = " ".join(random.Random(seed).choices(["the", "state", "of", "answer", "it", "yes"], k=n_words))
    return {"state": state, "questions": {"a": NOUL, "b": CHOICE, "c": SCORE}, **fields}


TOO_MANY = request(5) | {"questions": {"q": {"type": "choice", "criteria": {str(i): None for i in range(256)}}}}
TOO_LONG = request(MAX_REQUEST_TOKENS)
ANSWERED = [
    *(request(20, seed, x_method=method) for seed in range(4) for method in ("letters", "options")),
    request(200, 1, x_debias=3),
    request(0, 2),
    request(4000, 3),
    request(4000, 3) | {"questions": {"other": CHOICE}},
    request(2500, 4, x_method="options"),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """Rounds of 1024 tokens, so that long states go in chunks; a short queue; pages for a few states."""
    with (
        tiny_engine(
            max_round_tokens=1024, max_request_tokens=MAX_REQUEST_TOKENS, max_queue=6, cache_bytes=1 << 23
        ) as engine,
        live_server(engine) as running,
    ):
        monkeypatch.setattr(logging.getLogger("ramet.server.access"), "disabled", True)  # pytest would keep every line
        yield running


class Clients:
    """What the clients of one server do and saw: `seen` counts the ways in which requests ended."""

    def __init__(self, server: LiveServer, wanted: list[dict[str, Any]]) -> None:
        self.server, self.wanted = server, wanted
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    def run(self, seed: int, is_over: Callable[[], bool]) -> None:
        """One client: requests of all kinds in a random order, until it is over."""
        rng = random.Random(seed)
        kinds = [self.answered] * 6 + [self.refused, self.too_long, self.hung_up, self.hung_up]
        with httpx2.Client(base_url=self.server.url) as http:
            while not is_over():
                kind = rng.choice(kinds)
                kind(http, rng)
                self.count(kind.__name__)

    def count(self, what: str) -> None:
        with self.lock:
            self.seen[what] += 1

    def answered(self, http: httpx2.Client, rng: random.Random) -> None:
        i = rng.randrange(len(ANSWERED))
        reply = self.post(http, ANSWERED[i])
        assert reply.status_code == 200, reply.text
        assert_close(reply.json()["answers"], self.wanted[i])

    def refused(self, http: httpx2.Client, rng: random.Random) -> None:
        assert http.post("/v1/systemone", json=TOO_MANY).status_code == 422

    def too_long(self, http: httpx2.Client, rng: random.Random) -> None:
        assert self.post(http, TOO_LONG).status_code == 413

    def hung_up(self, http: httpx2.Client, rng: random.Random) -> None:
        """Sends a whole request, waits a little or not at all, and closes the connection."""
        body = json.dumps(rng.choice(ANSWERED)).encode()
        head = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall(head + body)
            time.sleep(rng.choice([0, 0.005, 0.05]))

    def post(self, http: httpx2.Client, body: dict[str, Any]) -> httpx2.Response:
        """The answer, sooner or later: a full queue is asked again."""
        while (reply := http.post("/v1/systemone", json=body)).status_code == 429:
            self.count("full queue")
            assert float(reply.headers["retry-after-ms"]) > 0
            time.sleep(0.2)
        return reply


def lone_answers(server: LiveServer) -> list[dict[str, Any]]:
    """The answer to each of ANSWERED with no other request about."""
    replies = [httpx2.post(f"{server.url}/v1/systemone", json=body) for body in ANSWERED]
    assert {reply.status_code for reply in replies} == {200}
    return [reply.json()["answers"] for reply in replies]


def resident_mib() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 2**20)


def assert_idle(engine: Engine) -> None:
    """No request is open, and every page is free or holds a kept state."""
    wait_until(lambda: not engine.stats()["open_requests"] and not len(engine._loop.scheduler))
    pages = engine._loop.scheduler.pages
    assert pages.n_free + pages.n_indexed == pages.n_pages
    pages.index.clear()
    assert pages.n_free == pages.n_pages


@pytest.mark.slow
def test_clients_that_fail_and_hang_up_among_others(server: LiveServer) -> None:
    clients = Clients(server, lone_answers(server))
    memory = []

    def run_all(seconds: float) -> None:
        """And longer, until every kind of request was there, and a client went while its work was under way."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            stats = server.engine.stats()
            return time.monotonic() > end and all(clients.seen[kind] for kind in KINDS) and stats["cancelled_total"] > 0

        with ThreadPoolExecutor(N_CLIENTS) as pool:
            for done in [pool.submit(clients.run, seed, is_over) for seed in range(N_CLIENTS)]:
                done.result()
        memory.append(resident_mib())

    for _ in range(4):
        run_all(LOAD_S / 4)
    print(f"\n{LOAD_S:g} s: {dict(clients.seen)}; {server.engine.stats()}; MiB {[round(m) for m in memory]}")
    assert isinstance(server.engine, Engine)
    assert_idle(server.engine)
    assert memory[-1] - memory[1] < MAX_GROWTH_MIB
    for answers, wanted in zip(lone_answers(server), clients.wanted, strict=True):
        assert_close(answers, wanted)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_64_clients_get_the_answers_of_a_lone_one(family: str, tmp_path: Path) -> None:
    """D14: tokenizer, plans, rounds and kept states, on every level, are shared by all threads, and no request leaves a
    trace in another's."""
    levels: dict[str, Any] = {"memory_cache_bytes": 1 << 20, "disk_cache": tmp_path} if family == "qwen3_5" else {}
    with (
        tiny_engine(family, max_round_tokens=2048, max_request_tokens=MAX_REQUEST_TOKENS, **levels) as engine,
        live_server(engine) as server,
    ):
        wanted = lone_answers(server)
        bodies = [*enumerate(ANSWERED)] * 10 + [(-1, TOO_LONG)] * 6 + [(-2, TOO_MANY)] * 6
        random.Random(0).shuffle(bodies)
        with httpx2.Client(limits=httpx2.Limits(max_connections=64)) as http:
            with ThreadPoolExecutor(64) as pool:
                replies = pool.map(lambda body: http.post(f"{server.url}/v1/systemone", json=body[1]), bodies)
            for (i, _), reply in zip(bodies, replies, strict=True):
                assert reply.status_code == {-1: 413, -2: 422}.get(i, 200), reply.text
                if i >= 0:
                    assert_close(reply.json()["answers"], wanted[i], ATOL[family])
        assert_idle(engine)


def test_rounds_of_every_length_cost_no_memory() -> None:
    """What the libraries below keep for each number of rows must not pile up."""
    lengths = np.random.default_rng(0).permutation(np.arange(1, 701)).tolist()
    with tiny_engine(max_round_tokens=1024) as engine:

        def run_all(chosen: list[int]) -> float:
            for n in chosen:
                engine.submit(Tree.of([Segment([n % 100] * n, reads=[Read([1])])])).result()
            return resident_mib()

        first, last = run_all(lengths[:40]), run_all(lengths[40:300])
    assert last - first < MAX_GROWTH_MIB, (first, last)
