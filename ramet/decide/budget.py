"""Budget: counts a request's tokens while it is planned, so that planning ends where the request cannot run."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ramet.errors import Cancelled, RequestTooLong


def _never() -> bool:
    return False


class Budget:
    """The tokens that one request may have. `has_gone` says whether its caller has gone."""

    def __init__(self, max_tokens: int = sys.maxsize, has_gone: Callable[[], bool] = _never) -> None:
        self.max_tokens = max_tokens
        self._has_gone = has_gone
        self._n_tokens = 0

    def spend(self, n_tokens: int) -> None:
        """Count tokens that the plan now has. Raises RequestTooLong when there are too many, and Cancelled when the
        caller has gone."""
        self._n_tokens += n_tokens
        self.need(self._n_tokens)
        if self._has_gone():
            raise Cancelled("nobody waits for this any more")

    def need(self, n_tokens: int, what: str = "") -> None:
        """Raise RequestTooLong if a request with at least so many tokens is too long. `what` names what has them."""
        if n_tokens > self.max_tokens:
            raise RequestTooLong(
                f"{what}at least {n_tokens} tokens in all, {self.max_tokens} at most (max_request_tokens)"
            )
