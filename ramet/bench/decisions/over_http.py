"""Ramet's server and another, side by side over HTTP, by turns.

Both serve the same checkpoint on the same hardware and get the same bytes. A turn waits until both are at rest
(threads of the other spin for a while after an answer), wakes the one whose turn it is with a tiny request that is not
timed, and then times one. With several clients a turn is a whole burst.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from ramet.bench.core.bodies import Bodies
from ramet.bench.core.samples import Effort, JsonObject, Row, interleave
from ramet.bench.core.shapes import DecisionShape, Trial
from ramet.bench.core.timing import closed_loop
from ramet.bench.peers.server import DecisionClient, ServerProcess, usage
from ramet.errors import RametError
from ramet.text.tokenizer import Tokenizer

TRIALS = ("400x1", "400x4", "400x16", "400x48", "2000x4", "2000x16", "400x4@8")
_TINY = DecisionShape(16, 1)
_N_WARM = 2
_BURSTS = 3
_REQUESTS_A_CLIENT = 5

MakeServer = Callable[[Path], ServerProcess]  # given an empty folder for what the server compiles


class Contest:
    """Servers by name, each with a connection and bodies that no server has seen before. n_requests: of each client in
    a burst."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        servers: Mapping[str, ServerProcess],
        seed: int,
        step: Callable[[str], None],
        n_requests: int = _REQUESTS_A_CLIENT,
    ) -> None:
        self._servers, self._step, self._n_requests = servers, step, n_requests
        self._bodies = Bodies(tokenizer, random.Random(seed))  # noqa: S311
        self._connections = {name: DecisionClient(server.port) for name, server in servers.items()}
        self._n_restless = 0

    def row(self, trial: Trial, effort: Effort) -> Row:
        """One row of the report."""
        return self._load(trial) if trial.n_at_once > 1 else self._latency(trial.shape, effort)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _latency(self, shape: DecisionShape, effort: Effort) -> Row:
        """Milliseconds of single requests, one client, the same bodies to both."""
        row = Row(str(shape))
        self._n_restless = 0
        first: dict[str, float] = {}
        for name in self._servers:
            self._step(f"{shape} {name} warm-up")
            for _ in range(_N_WARM):
                first[name], answer = self._decide(name, self._bodies.draw(shape), shape)
            row.notes[f"input_tokens {name}"] = usage(answer)
        n = min(map(effort.affordable, first.values()))
        bodies = [self._bodies.draw(shape) for _ in range(n)]
        left = {name: iter(bodies) for name in self._servers}
        counts = dict.fromkeys(self._servers, n)
        row.take_turns(counts, lambda name: self._turn(name, next(left[name]), shape), self._step)
        row.notes["turns that found a server busy"] = self._n_restless
        return row

    def _load(self, trial: Trial) -> Row:
        """Requests a second of each burst in the notes, milliseconds of every request as samples."""
        row = Row(str(trial))
        rates: dict[str, list[float]] = {}
        for name in self._servers:
            self._step(f"{trial} {name} warm-up")
            _, answer = self._decide(name, self._bodies.draw(trial.shape), trial.shape)
            row.notes[f"input_tokens {name}"] = usage(answer)
            self._burst(name, trial, 1)
        for name in interleave(dict.fromkeys(self._servers, _BURSTS)):
            self._step(f"{trial} {name}")
            rate, times = self._burst(name, trial, self._n_requests)
            rates.setdefault(name, []).append(rate)
            row.samples.setdefault(name, []).extend(times)
        row.notes["requests_per_s"] = rates
        row.notes["p99_ms"] = {name: float(np.quantile(times, 0.99)) for name, times in row.samples.items()}
        return row

    def _burst(self, name: str, trial: Trial, n_requests: int) -> tuple[float, list[float]]:
        bodies = [self._bodies.draw(trial.shape) for _ in range(trial.n_at_once * n_requests)]
        self._rest()
        return burst(self._servers[name].port, bodies, trial.n_at_once)

    def _turn(self, name: str, body: bytes, shape: DecisionShape) -> float:
        self._rest()
        self._decide(name, self._bodies.draw(_TINY), _TINY)
        return self._decide(name, body, shape)[0]

    def _decide(self, name: str, body: bytes, shape: DecisionShape) -> tuple[float, bytes]:
        ms, answer = self._connections[name].decide(body)
        check(name, answer, shape)
        return ms, answer

    def _rest(self) -> None:
        self._n_restless += sum(not server.rest() for server in self._servers.values())


def check(name: str, answer: bytes, shape: DecisionShape) -> None:
    """Every question is answered with probabilities that sum to one; raises RametError otherwise.

    What the two say cannot be compared: each wraps a question in words of its own.
    """
    answers = json.loads(answer)["answers"]
    if list(answers) != [f"q{i}" for i in range(shape.n_questions)]:
        raise RametError(f"{name} answered {list(answers)} to {shape.n_questions} questions")
    for key, one in answers.items():
        total = sum(one["probabilities"].values())
        if abs(total - 1) > 1e-3:
            raise RametError(f"{name}: the probabilities of {key} sum to {total}")


def burst(port: int, bodies: Sequence[bytes], n_clients: int) -> tuple[float, list[float]]:
    """Requests a second, and each request's milliseconds, of clients with a connection each. Raises RametError where a
    request is not answered."""
    free: SimpleQueue[DecisionClient] = SimpleQueue()

    def decide(body: bytes) -> None:
        connection = free.get()
        connection.decide(body)
        free.put(connection)

    with ExitStack() as stack:
        for _ in range(n_clients):
            free.put(stack.enter_context(closing(DecisionClient(port))))
        rate, times, _ = closed_loop(decide, bodies, n_clients)
    return rate, times


def started(
    stack: ExitStack, makers: Mapping[str, MakeServer], bodies: Bodies, step: Callable[[str], None]
) -> tuple[dict[str, ServerProcess], JsonObject]:
    """Start every server twice, the others at rest: once with nothing compiled, once with what it then left.

    Returns the second ones, running, and the seconds from each start to the first answer.
    """
    servers: dict[str, ServerProcess] = {}
    seconds: JsonObject = {}
    for name, make in makers.items():
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ramet-bench-")))
        step(f"cold start of {name}")
        with make(cache) as cold:
            cold.first_answer(bodies.draw(_TINY))
        step(f"second start of {name}")
        servers[name] = stack.enter_context(make(cache))
        servers[name].first_answer(bodies.draw(_TINY))
        servers[name].rest()
        seconds[name] = {"cold_s": cold.start_s, "warm_s": servers[name].start_s}
    return servers, seconds
