"""An agent's history, made up: messages that come in step by step, and questions about each state of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ramet.bench.core.bodies import WORDS, text

_CONTEXT_WORDS = 3  # so many times a step's words begin a trajectory


@dataclass(frozen=True, slots=True)
class Growth:
    """How a history grows: `n_words` a step, half of them what the agent does and half what comes back. Of what
    comes back, half is there when the step's questions come, and the rest comes with the next step. `n_tail`
    words at the end say how it stands, others at each step: what went before them is kept, they are not."""

    n_words: int = 40
    n_tail: int = 0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What happens in each step: a pair of texts. `opening` comes before the first, `tails` [step] behind the rest."""

    opening: str
    steps: list[tuple[str, str]]
    tails: list[str]

    @classmethod
    def draw(cls, rng: random.Random, n_steps: int, growth: Growth) -> Trajectory:
        """Begins with a tag of its own, so that no two have tokens in common but the template's."""
        opening = f"{rng.getrandbits(48):012x} {text(rng, _CONTEXT_WORDS * growth.n_words)}"
        half = max(2, growth.n_words // 2)
        steps = [(text(rng, half), text(rng, half)) for _ in range(n_steps)]
        return cls(opening, steps, [text(rng, growth.n_tail) for _ in range(n_steps)])

    def state(self, step: int) -> list[dict[str, str]]:
        """The messages there are when the questions of a step come."""
        messages = [_message("user", self.opening)]
        for done, heard in self.steps[: step + 1]:
            messages += [_message("assistant", done), _message("tool", heard)]
        words = self.steps[step][1].split()
        messages[-1] = _message("tool", " ".join(words[: len(words) // 2]))
        return [*messages, _message("status", self.tails[step])] if self.tails[step] else messages


def questions(n: int) -> dict[str, dict[str, Any]]:
    """The same at every step: yes or no, one of four, how much, by turns."""
    return {f"q{i}": question for i, question in zip(range(n), _questions(), strict=False)}


def _questions() -> Iterator[dict[str, Any]]:
    rng = random.Random(0)  # noqa: S311
    while True:
        subject = text(rng, 6)
        yield {"type": "noul", "instructions": f"Is the agent done with the {subject}?"}
        options = dict.fromkeys(dict.fromkeys(rng.choices(WORDS, k=4)))
        yield {"type": "choice", "instructions": f"What should it do next about the {subject}?", "criteria": options}
        levels = ["not at all", "somewhat", "mostly", "wholly"]
        yield {"type": "score", "instructions": f"How far has the {subject} come?", "criteria": levels}


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
