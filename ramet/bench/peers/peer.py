"""What a peer in this process has to offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ramet.bench.core.samples import JsonObject
from ramet.bench.core.shapes import Prompt
from ramet.bench.core.timing import Run

Prompts = Sequence[Prompt]  # of one round
Contestant = Callable[[Prompts], Run]  # what it gets ready is not timed, what it returns is


class PeerEngine(Protocol):
    """Another engine on the same weights."""

    @property
    def name(self) -> str:
        """With its version."""

    @property
    def ratios(self) -> Sequence[tuple[str, str, str]]:
        """For the report: (name, base, key), medians of the first over those of the second."""

    def contestants(self, prompts: Prompts, columns: Sequence[int]) -> dict[str, Contestant]:
        """Its ways through prompts like these, by name; a run answers with the logits of `columns`, [questions,
        columns] of all prompts."""

    def notes(self) -> JsonObject:
        """What to say of the rounds since `contestants` was called last."""
