"""Budget: how many tokens a request may have, spent while it is planned, so that what cannot be run is not planned."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ramet.errors import Cancelled, RequestTooLong


def _never() -> bool:
    return False


class Budget:
    """Of one request. `has_gone` says whether anybody still waits for it."""

    def __init__(self, max_tokens: int = sys.maxsize, has_gone: Callable[[], bool] = _never) -> None:
        self.max_tokens = max_tokens
        self._has_gone = has_gone
        self._n_tokens = 0

    def spend(self, n_tokens: int) -> None:
        """Take so many more into the plan. Raises RequestTooLong where these are too many, Cancelled where nobody
        waits any more."""
        self._n_tokens += n_tokens
        self.need(self._n_tokens)
        if self._has_gone():
            raise Cancelled("nobody waits for this any more")

    def need(self, n_tokens: int, what: str = "") -> None:
        """Raises RequestTooLong where a request that has at least so many tokens has too many. what: what has them."""
        if n_tokens > self.max_tokens:
            raise RequestTooLong(
                f"{what}at least {n_tokens} tokens in all, {self.max_tokens} at most (max_request_tokens)"
            )
