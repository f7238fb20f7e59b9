"""Example: a prompt and its one right answer, made from a seed, and whether it is held out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ramet.question import Question

HELD_OUT = 64  # one prompt in so many is held out: never trained on


@dataclass(frozen=True, slots=True)
class Example:
    """What a user writes, and what the reply must be, letter for letter.

    Of a decision, the state and question whose words the prompt is, and which of its options is right, from 0.
    """

    task: str
    prompt: str
    answer: str
    state: str = ""
    question: Question | None = None
    right: int = -1

    @property
    def is_held_out(self) -> bool:
        """By the prompt alone, so that the same prompt is never on both sides."""
        return hashlib.sha256(self.prompt.encode()).digest()[0] % HELD_OUT == 0

    def check(self, reply: str) -> bool:
        """Whether a reply is right: the answer itself, white space around it aside."""
        return reply.strip() == self.answer


Make = Callable[[random.Random], Example]


def examples(make: Make, seed: int, *, held_out: bool) -> Iterator[Example]:
    """Without an end, the same for the same seed: those that are held out, or the others."""
    rng = random.Random(seed)  # noqa: S311
    while True:
        found = make(rng)
        if found.is_held_out == held_out:
            yield found
