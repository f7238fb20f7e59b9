"""Requests whose every question can be sent alone, among others, or with another state in front; and random loads of
them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ramet.bench.core.bodies import WORDS
from ramet.decision import Answer, NoulAnswer
from ramet.engine.engine import Engine
from ramet.request import DecisionRequest
from ramet.tree import Read, Reads, Segment, Tree

Numbers = npt.NDArray[np.floating[Any]]
Wait = Callable[[], list[Numbers]]
Item = TypeVar("Item")
Asked = TypeVar("Asked")
MAX_QUESTIONS, MAX_WORDS, MAX_OPTIONS = 5, 12, 4
_N_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Probe(ABC, Generic[Item, Asked]):
    """A state of items, ids or words, and questions about it."""

    state: list[Item]
    questions: list[Asked]

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
        """Send some of the questions in one request, in that order, and return at once; what is returned waits for the
        numbers of each: equal bits are equal answers."""

    @abstractmethod
    def items(self, rng: random.Random, n: int) -> list[Item]: ...

    @abstractmethod
    def question(self, rng: random.Random) -> Asked: ...


@dataclass(frozen=True, slots=True)
class ProbeBranch:
    """A question's tokens, and those of its options below it, where it has any."""

    tokens: list[int]
    options: list[list[int]]
    columns: list[int]

    @property
    def n_reads(self) -> int:
        return max(1, len(self.options))

    def segments(self, at: int) -> list[Segment]:
        """Below the root, the question being segment number `at`."""
        read = (Read(self.columns),)
        if not self.options:
            return [Segment(self.tokens, parent=0, reads=read)]
        return [Segment(self.tokens, parent=0), *(Segment(ids, parent=at, reads=read) for ids in self.options)]


@dataclass(frozen=True, slots=True)
class TreeProbe(Probe[int, ProbeBranch]):
    """Random ids. The numbers of a question are the logits of its columns and the logsumexp of its rows, float32."""

    n_vocab: int

    @classmethod
    def draw(cls, rng: random.Random, n_vocab: int, n_state: int) -> TreeProbe:
        """A state of up to n_state tokens."""
        return cls([], [], n_vocab).drawn(rng, n_state)

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        branches = [self.questions[i] for i in chosen]
        future = engine.submit(self.tree(branches), n_keep=len(self.state), salt=salt)
        return lambda: _by_branch(branches, future.result())

    def items(self, rng: random.Random, n: int) -> list[int]:
        return rng.choices(range(self.n_vocab), k=n)

    def question(self, rng: random.Random) -> ProbeBranch:
        def ids(most: int) -> list[int]:
            return self.items(rng, rng.randint(1, most))

        options = [ids(MAX_OPTIONS) for _ in range(rng.randint(2, MAX_OPTIONS))] if rng.random() < 0.5 else []
        return ProbeBranch(ids(3 * MAX_WORDS), options, self.items(rng, _N_COLUMNS))

    def tree(self, branches: Sequence[ProbeBranch]) -> Tree:
        segments = [Segment(self.state)]
        for branch in branches:
            segments += branch.segments(len(segments))
        return Tree.of(segments)


@dataclass(frozen=True, slots=True)
class DecisionProbe(Probe[str, dict[str, Any]]):
    """Made-up words. The numbers of a question are its probabilities and the mass of its options, float64."""

    @classmethod
    def draw(cls, rng: random.Random, n_words: int) -> DecisionProbe:
        """A state of up to n_words words."""
        return cls([], []).drawn(rng, n_words)

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        questions = {str(i): self.questions[i] for i in chosen}
        fields = {"state": " ".join(self.state), "questions": questions, "cache_salt": salt}
        future = threads.submit(engine.decide, DecisionRequest.parse(fields))
        return lambda: [_numbers(answer) for answer in future.result().answers.values()]

    def items(self, rng: random.Random, n: int) -> list[str]:
        return rng.choices(WORDS, k=n)

    def question(self, rng: random.Random) -> dict[str, Any]:
        kind, text = rng.choice(["noul", "choice", "score"]), " ".join(self.items(rng, rng.randint(1, MAX_WORDS))) + "?"
        if kind == "noul":
            return {"type": kind, "instructions": text}
        options = rng.sample(WORDS, rng.randint(2, MAX_OPTIONS))
        return {"type": kind, "instructions": text, "criteria": dict.fromkeys(options) if kind == "choice" else options}


def _by_branch(branches: Sequence[ProbeBranch], reads: Reads) -> list[Numbers]:
    found, at = [], 0
    for branch in branches:
        part = reads.part(at, at + branch.n_reads)
        found.append(np.concatenate([part.logits, part.logsumexp]))
        at += branch.n_reads
    return found


def _numbers(answer: Answer) -> Numbers:
    own = [answer.noul] if isinstance(answer, NoulAnswer) else list(answer.probabilities.values())
    return np.array([*own, answer.x_label_mass])


ROUND_TOKENS = (64, 96, 128, 256, 1024, 4096)
_MAX_STRANGERS = 6
Draw = Callable[[random.Random], Probe[Any, Any]]


@dataclass(frozen=True, slots=True)
class Ask:
    """Some questions of a probe. number: of the probe whose answers are known; -1 for one that makes up the load."""

    probe: Probe[Any, Any]
    chosen: Sequence[int]
    number: int = -1


@dataclass(frozen=True, slots=True)
class RandomLoad:
    """What is sent at `first`, so that its states are kept, and `then` all at once, in rounds of max_round_tokens."""

    number: int
    max_round_tokens: int
    first: list[Ask]
    then: list[Ask]

    @classmethod
    def draw(cls, number: int, seed: int, probes: Sequence[Probe[Any, Any]], stranger: Draw) -> RandomLoad:
        """One to three of the probes, with some of its questions in some order; at times another version of its
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


def _all(probe: Probe[Any, Any]) -> Ask:
    return Ask(probe, range(probe.n_questions))
