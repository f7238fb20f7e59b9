"""TreeCheck: what is wrong with a tree is said before any work."""

from __future__ import annotations

import numpy as np

from ramet.engine.scheduler import Scheduler
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest, RequestTooLong
from ramet.tree import WHOLE, Limits, Tree


class TreeCheck:
    """Raises InvalidRequest for ids that are none, and RequestTooLong for trees that do not fit the model, the rounds
    or the pages. max_length: positions that the model takes."""

    def __init__(
        self, scheduler: Scheduler, settings: EngineSettings, *, vocab_size: int, max_length: int, grain: int
    ) -> None:
        self._scheduler, self._settings = scheduler, settings
        self._vocab_size, self._max_length = vocab_size, max_length
        self._widest = max(scheduler.max_round_tokens // 2, grain)  # what a round gives a long tree while others wait

    def __call__(self, tree: Tree, limits: Limits | None = None) -> None:
        """limits: of the trees that may follow it, which have blocks like its own."""
        for name, ids in (("tokens", tree.tokens), ("reads.columns", tree.columns)):
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size):
                wrong = int(ids[(ids < 0) | (ids >= self._vocab_size)][0])
                raise InvalidRequest(f"ids run from 0 to {self._vocab_size - 1}; {wrong} is none", field=name)
        self._check_size(tree, tree.n_tokens, tree.max_position)
        if limits is not None:
            self._check_size(tree, limits.n_tokens, limits.max_position)

    def in_two_steps(self, tree: Tree) -> bool:
        """Whether canvases wait for their prompts."""
        return not self._settings.single_pass_reads and bool((tree.blocks == WHOLE).any())

    def _check_size(self, tree: Tree, n_tokens: int, max_position: int) -> None:
        scheduler, most = self._scheduler, self._scheduler.max_round_tokens
        if max_position > self._max_length:
            rows = ", with what is read behind it," if (tree.blocks != 1).any() else ""
            raise RequestTooLong(
                f"the state and its longest question{rows} have {max_position} tokens; the model takes "
                f"{self._max_length} (max_model_len)"
            )
        if n_tokens > self._settings.max_request_tokens:
            raise RequestTooLong(
                f"{n_tokens} tokens in all, {self._settings.max_request_tokens} at most (max_request_tokens)"
            )
        is_cut = n_tokens > most or self.in_two_steps(tree)
        if is_cut and scheduler.n_pages_for(max_position) > scheduler.pages.n_pages:
            raise RequestTooLong(f"{max_position} tokens do not fit the pages; a larger cache_bytes helps")
        if n_tokens > most and int(np.minimum(tree.blocks, tree.lengths).max()) > self._widest:
            raise RequestTooLong(f"a block, whose rows run together, has more than {self._widest} (max_round_tokens)")


def check_kinds(**given: tuple[object, type]) -> None:
    """Raise InvalidRequest for what would only fail in the engine's thread: other types, and numbers below 0."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise InvalidRequest(f"is of type {kind.__name__}, not {type(value).__name__}", field=name)
        if isinstance(value, int) and value < 0:
            raise InvalidRequest(f"must be at least 0, not {value}", field=name)
