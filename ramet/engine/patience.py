"""Patience: the seconds after which a refused client may try again."""

from __future__ import annotations

import random

MAX_WAIT_S = 40.0  # with what is added, a minute: some clients do not heed a longer one
MAX_JITTER = 0.5  # of the wait, on top of it


class Patience:
    """A second for each refusal in a row: of a crowd that comes at once each waits for those that came before. What is
    added at random keeps them from coming back at once."""

    def __init__(self) -> None:
        self._n_refused = 0

    def admitted(self) -> None:
        """Note that there is room again."""
        self._n_refused = 0

    def refused(self) -> float:
        """The seconds after which one more refused client may try again."""
        self._n_refused += 1
        return min(float(self._n_refused), MAX_WAIT_S) * (1 + random.uniform(0, MAX_JITTER))  # noqa: S311 - no secret
