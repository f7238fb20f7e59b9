"""Requests whose every question can be asked alone, or among others, or with another state in front."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from ramet.bench.bodies import WORDS
from ramet.decision import Answer, NoulAnswer
from ramet.engine.engine import Engine
from ramet.request import DecisionRequest
from ramet.tree import Read, Reads, Segment, Tree

Numbers = npt.NDArray[np.floating[Any]]
Wait = Callable[[], list[Numbers]]
MAX_QUESTIONS, MAX_WORDS, MAX_OPTIONS = 5, 12, 4
_N_COLUMNS = 5


class Probe(Protocol):
    """A state and its questions."""

    @property
    def n_questions(self) -> int: ...

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        """Ask some of the questions in one request, in that order, and return at once; what is returned waits for the
        numbers of each: equal bits are equal answers."""

    def sibling(self, rng: random.Random) -> Self:
        """Other questions about the same state."""

    def version(self, rng: random.Random) -> Self:
        """The same questions about a state that is shorter or longer, and begins alike."""


@dataclass(frozen=True, slots=True)
class Branch:
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
class TreeProbe:
    """Random ids. The numbers of a question are the logits of its columns and the logsumexp of its rows, float32."""

    state: list[int]
    branches: list[Branch]
    n_vocab: int

    @classmethod
    def draw(cls, rng: random.Random, n_vocab: int, n_state: int) -> TreeProbe:
        """A state of up to n_state tokens."""
        state = rng.choices(range(n_vocab), k=rng.randint(1, n_state))
        return cls(state, [_branch(rng, n_vocab) for _ in range(rng.randint(1, MAX_QUESTIONS))], n_vocab)

    @property
    def n_questions(self) -> int:
        return len(self.branches)

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        branches = [self.branches[i] for i in chosen]
        future = engine.submit(self.tree(branches), n_keep=len(self.state), salt=salt)
        return lambda: _by_branch(branches, future.result())

    def sibling(self, rng: random.Random) -> TreeProbe:
        return replace(self, branches=[_branch(rng, self.n_vocab) for _ in range(rng.randint(1, MAX_QUESTIONS))])

    def version(self, rng: random.Random) -> TreeProbe:
        shorter = self.state[: rng.randint(1, len(self.state))]
        longer = self.state + rng.choices(range(self.n_vocab), k=rng.randint(1, len(self.state)))
        return replace(self, state=rng.choice([shorter, self.state, longer]))

    def tree(self, branches: Sequence[Branch]) -> Tree:
        segments = [Segment(self.state)]
        for branch in branches:
            segments += branch.segments(len(segments))
        return Tree.of(segments)


@dataclass(frozen=True, slots=True)
class DecisionProbe:
    """Made-up words. The numbers of a question are its probabilities and the mass of its options, float64."""

    state: str
    questions: list[dict[str, Any]]

    @classmethod
    def draw(cls, rng: random.Random, n_words: int) -> DecisionProbe:
        """A state of up to n_words words."""
        return cls(_words(rng, rng.randint(1, n_words)), _questions(rng))

    @property
    def n_questions(self) -> int:
        return len(self.questions)

    def ask(self, engine: Engine, chosen: Sequence[int], salt: str, threads: Executor) -> Wait:
        questions = {str(i): self.questions[i] for i in chosen}
        request = DecisionRequest.parse({"state": self.state, "questions": questions, "cache_salt": salt})
        future = threads.submit(engine.decide, request)
        return lambda: [_numbers(answer) for answer in future.result().answers.values()]

    def sibling(self, rng: random.Random) -> DecisionProbe:
        return replace(self, questions=_questions(rng))

    def version(self, rng: random.Random) -> DecisionProbe:
        words = self.state.split()
        shorter = " ".join(words[: rng.randint(1, len(words))])
        longer = f"{self.state} {_words(rng, rng.randint(1, len(words)))}"
        return replace(self, state=rng.choice([shorter, self.state, longer]))


def _branch(rng: random.Random, n_vocab: int) -> Branch:
    def ids(most: int) -> list[int]:
        return rng.choices(range(n_vocab), k=rng.randint(1, most))

    options = [ids(MAX_OPTIONS) for _ in range(rng.randint(2, MAX_OPTIONS))] if rng.random() < 0.5 else []
    return Branch(ids(3 * MAX_WORDS), options, rng.choices(range(n_vocab), k=_N_COLUMNS))


def _by_branch(branches: Sequence[Branch], reads: Reads) -> list[Numbers]:
    found, at = [], 0
    for branch in branches:
        part = reads.part(at, at + branch.n_reads)
        found.append(np.concatenate([part.logits, part.logsumexp]))
        at += branch.n_reads
    return found


def _questions(rng: random.Random) -> list[dict[str, Any]]:
    return [_question(rng) for _ in range(rng.randint(1, MAX_QUESTIONS))]


def _question(rng: random.Random) -> dict[str, Any]:
    kind, asked = rng.choice(["noul", "choice", "score"]), f"{_words(rng, rng.randint(1, MAX_WORDS))}?"
    if kind == "noul":
        return {"type": kind, "instructions": asked}
    options = rng.sample(WORDS, rng.randint(2, MAX_OPTIONS))
    return {"type": kind, "instructions": asked, "criteria": dict.fromkeys(options) if kind == "choice" else options}


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choices(WORDS, k=n))


def _numbers(answer: Answer) -> Numbers:
    own = [answer.noul] if isinstance(answer, NoulAnswer) else list(answer.probabilities.values())
    return np.array([*own, answer.x_label_mass])
