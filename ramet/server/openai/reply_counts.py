"""ReplyCounts: the tokens, passes and seconds of a reply."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class ReplyCounts:
    """What a reply took. The engine found n_cached of the prompt's n_prompt tokens in its cache. The reply has n_tokens
    tokens, of which n_first came first, together. Its n_steps passes ran n_rows of its rows, where it has no canvases.
    chunk_size is the most rows of a chunk, where the reply's chunks have one size at any load."""

    n_prompt: int
    n_cached: int = 0
    n_tokens: int = 0
    n_first: int = 0
    n_steps: int = 0
    n_rows: int = 0
    n_canvases: int = 0
    chunk_size: int | None = None
    _began: float = field(default_factory=time.perf_counter, repr=False)
    _first: float = field(default=0.0, repr=False)
    _latest: float = field(default=0.0, repr=False)

    def count(self, n_tokens: int) -> None:
        """Count tokens that have come just now."""
        if not n_tokens:
            return
        self._latest = time.perf_counter()
        if not self.n_tokens:
            self.n_first, self._first = n_tokens, self._latest
        self.n_tokens += n_tokens

    @property
    def first_s(self) -> float | None:
        """Seconds to the first tokens; None for a reply without tokens."""
        return self._first - self._began if self.n_tokens else None

    @property
    def token_s(self) -> float | None:
        """Mean seconds of each token behind the first ones; None where there are no such tokens."""
        n_behind = self.n_tokens - self.n_first
        return (self._latest - self._first) / n_behind if n_behind else None
