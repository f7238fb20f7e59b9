"""What one timed run works on: how large, and which token ids."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.errors import InvalidRequest
from ramet.quoting import shown
from ramet.tree import Read, Segment, Tree

MOST_ROWS = 1 << 24  # of a stream
MOST_AT_ONCE = 4096
_NUMBER = re.compile("0*[1-9][0-9]{0,7}")


@dataclass(frozen=True, slots=True)
class DecisionShape:
    """`n_state` tokens shared by `n_questions` questions; of `n_tokens` tokens each, or of natural length where 0."""

    n_state: int
    n_questions: int
    n_tokens: int = 0

    @classmethod
    def parse(cls, text: str, n_numbers: int) -> DecisionShape:
        """Read "400x4x60" (n_numbers 3) or "400x4" (2). Raises InvalidRequest."""
        parts = text.strip().split("x")
        if len(parts) != n_numbers or not all(_NUMBER.fullmatch(part) for part in parts):
            form = "x".join(("STATE", "QUESTIONS", "TOKENS")[:n_numbers])
            raise InvalidRequest(f"{shown(text)} is no shape; write {form}, such as 400x4x60", field="shapes")
        found = cls(*map(int, parts))
        if found.n_stream > MOST_ROWS:
            raise InvalidRequest(f"{found} has more than {MOST_ROWS} rows, the limit", field="shapes")
        return found

    def __str__(self) -> str:
        return "x".join(str(n) for n in (self.n_state, self.n_questions, self.n_tokens) if n)

    @property
    def n_stream(self) -> int:
        """Rows of a pass that computes the state once."""
        return self.n_state + self.n_questions * self.n_tokens

    @property
    def n_repeated(self) -> int:
        """Rows of a pass that computes the state again for each question."""
        return self.n_questions * (self.n_state + self.n_tokens)


@dataclass(frozen=True, slots=True)
class Trial:
    """A shape, and how many ask at once: clients over HTTP, requests of one round in process."""

    shape: DecisionShape
    n_at_once: int = 1

    @classmethod
    def parse(cls, text: str, n_numbers: int) -> Trial:
        """Read "400x4x60" (n_numbers 3) or "400x4" (2), "400x4@8" for eight at once. Raises InvalidRequest."""
        shape, at, n = text.strip().partition("@")
        if at and not (_NUMBER.fullmatch(n) and int(n) <= MOST_AT_ONCE):
            why = f"a number up to {MOST_AT_ONCE} stands behind @, of those that ask at once"
            raise InvalidRequest(f"{shown(text)}: {why}", field="shapes")
        return cls(DecisionShape.parse(shape, n_numbers), int(n or 1))

    def __str__(self) -> str:
        return str(self.shape) + (f"@{self.n_at_once}" if self.n_at_once > 1 else "")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Random ids of one shape."""

    state: list[int]
    questions: list[list[int]]

    @classmethod
    def draw(cls, shape: DecisionShape, rng: random.Random, n_vocab: int) -> Prompt:
        """Fresh ids each time, so that nothing can be remembered from one run to the next."""
        state = rng.choices(range(n_vocab), k=shape.n_state)
        return cls(state, [rng.choices(range(n_vocab), k=shape.n_tokens) for _ in range(shape.n_questions)])

    def tree(self, columns: Sequence[int]) -> Tree:
        """The state, a branch a question, and the logits of `columns` at each branch's last row."""
        read = (Read(columns, normalize=False),)
        return Tree.of([Segment(self.state), *(Segment(q, parent=0, reads=read) for q in self.questions)])

    def whole(self) -> list[list[int]]:
        """Every question as a sequence of its own, the state in front: what a peer without branches computes."""
        return [self.state + question for question in self.questions]
