"""Random loads: what is asked beside a probe, before it, and how the engine is to cut it up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from ramet.bench.probes import Numbers, Probe
from ramet.engine.engine import Engine

ROUND_TOKENS = (64, 96, 128, 256, 1024, 4096)
_MAX_STRANGERS = 6
Draw = Callable[[random.Random], Probe]


@dataclass(frozen=True, slots=True)
class Ask:
    """Some questions of a probe. number: of the probe whose answers are known; -1 for one that makes up the load."""

    probe: Probe
    chosen: Sequence[int]
    number: int = -1


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked at `first`, so that its states are kept, and `then` all at once, in rounds of max_round_tokens."""

    number: int
    max_round_tokens: int
    first: list[Ask]
    then: list[Ask]

    @classmethod
    def draw(cls, number: int, seed: int, probes: Sequence[Probe], stranger: Draw) -> Load:
        """One to three of the probes, each asked some of its questions in some order; at times another version of its
        state before it, all of its own questions before it, and other questions about its state beside it. And
        strangers."""
        rng = random.Random(f"{seed} load {number}")  # noqa: S311
        first, then = [], []
        for i in rng.sample(range(len(probes)), rng.randint(1, min(3, len(probes)))):
            probe = probes[i]
            chosen = rng.sample(range(probe.n_questions), rng.randint(1, probe.n_questions))
            then.append(Ask(probe, chosen, i))
            first += [_all(probe.version(rng))] if rng.random() < 0.5 else []
            first += [_all(probe)] if rng.random() < 0.25 else []
            then += [_all(probe.sibling(rng))] if rng.random() < 0.5 else []
        then += [_all(stranger(rng)) for _ in range(rng.randint(0, _MAX_STRANGERS))]
        rng.shuffle(then)
        return cls(number, rng.choice(ROUND_TOKENS), first, then)

    def run(self, engine: Engine, threads: Executor) -> Iterator[tuple[Ask, list[Numbers]]]:
        """The probes of the load, and the numbers of each of their questions."""
        for ask in self.first:
            ask.probe.ask(engine, ask.chosen, "", threads)()
        waits = [(ask, ask.probe.ask(engine, ask.chosen, "", threads)) for ask in self.then]
        for ask, wait in waits:
            numbers = wait()
            if ask.number >= 0:
                yield ask, numbers


def _all(probe: Probe) -> Ask:
    return Ask(probe, range(probe.n_questions))
