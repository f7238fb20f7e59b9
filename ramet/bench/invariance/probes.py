"""Requests whose every question can be sent alone, among others, or with another state in front; and random loads of
them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramet.bench.core.answers import probabilities_of
from ramet.bench.core.bodies import WORDS, text
from ramet.engine.engine import Engine
from ramet.request import DecisionRequest
from ramet.tree import Read, Reads, Segment, Tree

Numbers = npt.NDArray[np.floating[Any]]
Wait = Callable[[], list[Numbers]]
MAX_QUESTIONS = 5
MAX_WORDS = 12
MAX_OPTIONS = 4
ROUND_TOKENS = (64, 96, 128, 256, 1024, 4096)
_N_COLUMNS = 5
_MAX_STRANGERS = 6


@dataclass(frozen=True, slots=True)
class Probe(ABC):
    """A state of items, ids or words, and questions about it."""

    state: list[Any]
    questions: list[Any]

    @property
    def n_questions(self) -> int:
        return len(self.questions)

    def sibling(self, rng: random.Random) -> Self:
        """Other questions about the same state."""
        return replace(self, questions=[self.question(rng) for _ in range(rng.randint(1, MAX_QUESTIONS))])

    def version(self, rng: random.Random) -> Self:
        """The same questions about a state that is shorter or longer, and begins alike."""
        shorter = self.state[: rng.randint(1, len(self.state))]
        longer = self.state + self.items(rng, rng.randint(1, len(self.state)))
        return replace(self, state=rng.choice([shorter, self.state, longer]))

    def drawn(self, rng: random.Random, most: int) -> Self:
        """Another one, with a state of up to so many items."""
        return replace(self, state=self.items(rng, rng.randint(1, most))).sibling(rng)

    @abstractmethod
    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        """Send some of the questions in one request, in that order, and return at once. The returned function waits for
        the numbers of each question: equal bits are equal answers."""

    @abstractmethod
    def items(self, rng: random.Random, n: int) -> list[Any]: ...

    @abstractmethod
    def question(self, rng: random.Random) -> Any: ...


@dataclass(frozen=True, slots=True)
class ProbeBranch:
    """A question's tokens, and those of its options below it, where it has any."""

    tokens: list[int]
    options: list[list[int]]
    columns: list[int]

    def segments(self, at: int) -> list[Segment]:
        """Below the root, the question being segment number `at`."""
        read = (Read(self.columns),)
        if not self.options:
            return [Segment(self.tokens, parent=0, reads=read)]
        return [Segment(self.tokens, parent=0), *(Segment(ids, parent=at, reads=read) for ids in self.options)]


@dataclass(frozen=True, slots=True)
class TreeProbe(Probe):
    """Random ids. The numbers of a question are the logits of its columns and the logsumexp of its rows, float32."""

    n_vocab: int

    @classmethod
    def draw(cls, rng: random.Random, n_vocab: int, n_state: int) -> TreeProbe:
        """A state of up to n_state tokens."""
        return cls([], [], n_vocab).drawn(rng, n_state)

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        branches = [self.questions[i] for i in chosen]
        segments = [Segment(self.state)]
        for branch in branches:
            segments += branch.segments(len(segments))
        future = engine.submit(Tree.of(segments), n_keep=len(self.state), salt=salt)
        return lambda: _by_branch(branches, future.result())

    def items(self, rng: random.Random, n: int) -> list[int]:
        return rng.choices(range(self.n_vocab), k=n)

    def question(self, rng: random.Random) -> ProbeBranch:
        def ids(most: int) -> list[int]:
            return self.items(rng, rng.randint(1, most))

        options = [ids(MAX_OPTIONS) for _ in range(rng.randint(2, MAX_OPTIONS))] if rng.random() < 0.5 else []
        return ProbeBranch(ids(3 * MAX_WORDS), options, self.items(rng, _N_COLUMNS))


@dataclass(frozen=True, slots=True)
class DecisionProbe(Probe):
    """Made-up words. The numbers of a question are its probabilities and the mass of its options, float64."""

    @classmethod
    def draw(cls, rng: random.Random, n_words: int) -> DecisionProbe:
        """A state of up to n_words words."""
        return cls([], []).drawn(rng, n_words)

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        questions = {str(i): self.questions[i] for i in chosen}
        fields = {"state": " ".join(self.state), "questions": questions, "cache_salt": salt}
        future = threads.submit(engine.decide, DecisionRequest.parse(fields))
        return lambda: [
            np.array([*probabilities_of(answer), answer.x_label_mass]) for answer in future.result().answers.values()
        ]

    def items(self, rng: random.Random, n: int) -> list[str]:
        return rng.choices(WORDS, k=n)

    def question(self, rng: random.Random) -> dict[str, Any]:
        kind = rng.choice(["noul", "choice", "score"])
        asked = {"type": kind, "instructions": f"{text(rng, rng.randint(1, MAX_WORDS))}?"}
        if kind == "noul":
            return asked
        options = rng.sample(WORDS, rng.randint(2, MAX_OPTIONS))
        return asked | {"criteria": dict.fromkeys(options) if kind == "choice" else options}


def _by_branch(branches: Sequence[ProbeBranch], reads: Reads) -> list[Numbers]:
    found, at = [], 0
    for branch in branches:
        end = at + max(1, len(branch.options))
        part = reads.part(at, end)
        found.append(np.concatenate([part.logits, part.logsumexp]))
        at = end
    return found


@dataclass(frozen=True, slots=True)
class Ask:
    """Some questions of a probe. number: of the probe whose answers are known; -1 for one that makes up the load."""

    probe: Probe
    chosen: Sequence[int]
    number: int = -1

    @classmethod
    def all_of(cls, probe: Probe) -> Ask:
        return cls(probe, range(probe.n_questions))


@dataclass(frozen=True, slots=True)
class RandomLoad:
    """What is sent at `first`, so that its states are kept, and `then` all at once, in rounds of max_round_tokens."""

    number: int
    max_round_tokens: int
    first: list[Ask]
    then: list[Ask]

    @classmethod
    def draw(
        cls, number: int, seed: int, probes: Sequence[Probe], stranger: Callable[[random.Random], Probe]
    ) -> RandomLoad:
        """One to three of the probes, with some of its questions in some order; at times another version of its
        state before it, all of its own questions before it, and other questions about its state beside it. And
        strangers."""
        rng = random.Random(f"{seed} load {number}")  # noqa: S311
        first, then = [], []
        for i in rng.sample(range(len(probes)), rng.randint(1, min(3, len(probes)))):
            probe = probes[i]
            chosen = rng.sample(range(probe.n_questions), rng.randint(1, probe.n_questions))
            then.append(Ask(probe, chosen, i))
            first += [Ask.all_of(probe.version(rng))] if rng.random() < 0.5 else []
            first += [Ask.all_of(probe)] if rng.random() < 0.25 else []
            then += [Ask.all_of(probe.sibling(rng))] if rng.random() < 0.5 else []
        then += [Ask.all_of(stranger(rng)) for _ in range(rng.randint(0, _MAX_STRANGERS))]
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
