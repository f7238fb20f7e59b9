"""Priors: what a model says to a question with an empty state. They depend on the question alone, and are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramet.decide.bounded_cache import BoundedCache
from ramet.decide.branch import QuestionBranch
from ramet.decide.question_text import QuestionText
from ramet.decide.scaling import LogProbabilities

Key = tuple[bytes, QuestionText]  # an owner, and the question's words and replies


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The log-probabilities [n_cells] of a question's cells after an empty state, and the tokens that they took."""

    cells: LogProbabilities
    n_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Due:
    """A prior that a plan's tree computes: its cells are those from `first` on."""

    key: Key
    first: int
    n_cells: int
    n_tokens: int


class PlannedPriors:
    """The priors of a plan's questions. Those that are kept have the cells behind the tree's own; the others are due:
    the tree computes them, and then they are kept for the next request that asks the same.

    One owner does not find what another's questions left.
    """

    def __init__(
        self, cache: BoundedCache[Key, Prior], owner: bytes, forms: Sequence[QuestionText], n_head: int
    ) -> None:
        """n_head: tokens of the frame's head, which they have in common."""
        self._cache, self._n_head = cache, n_head
        self._keys = [(owner, form) for form in forms]
        self._found = [cache.get(key) for key in self._keys]
        self._due: list[Due] = []

    @property
    def due(self) -> list[QuestionText]:
        """The questions whose priors are still to be computed."""
        return [form for (_, form), found in zip(self._keys, self._found, strict=True) if found is None]

    @property
    def n_kept_tokens(self) -> int:
        """Tokens that need not be computed again."""
        n_tokens = sum(found.n_tokens for found in self._found if found is not None)
        return n_tokens + self._n_head if self._found and not self.due else n_tokens

    def lay(self, branches: Sequence[QuestionBranch], first: int) -> list[int]:
        """Where each question's prior begins in `complete`'s cells. `branches` are those of the questions that are due,
        whose cells the tree has from `first` on."""
        rest, places = iter(branches), list[int]()
        kept = first + sum(branch.n_cells for branch in branches)
        for key, found in zip(self._keys, self._found, strict=True):
            if found is None:
                branch = next(rest)
                self._due.append(Due(key, first, branch.n_cells, len(branch.tokens)))
                places.append(first)
                first += branch.n_cells
            else:
                places.append(kept)
                kept += len(found.cells)
        return places

    def complete(self, cells: LogProbabilities) -> LogProbabilities:
        """Keep what the tree computed. Returns the tree's cells [n], and behind them those of the kept priors."""
        for due in self._due:
            prior = Prior(cells[due.first : due.first + due.n_cells].copy(), due.n_tokens)
            self._cache.put(due.key, prior, due.key[1].n_characters + 2 * len(prior.cells))
        return np.concatenate([cells, *(found.cells for found in self._found if found is not None)])
