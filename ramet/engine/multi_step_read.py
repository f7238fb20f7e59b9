"""MultiStepRead: work of several trees, each of which depends on what the one before it returned."""

from __future__ import annotations

from typing import Protocol

from ramet.tree import Limits, Reads, Tree


class MultiStepRead(Protocol):
    """What `Engine.follow` runs. Called by the engine's thread between rounds: it takes microseconds, and raises
    nothing that its maker could have refused. Its limits are known beforehand, so that one that begins can also end."""

    @property
    def limits(self) -> Limits:
        """The same at any time."""

    def tree(self) -> Tree:
        """What is to run now. Its first root is kept, so that the next tree need not compute it again."""

    def take(self, reads: Reads) -> bool:
        """The results of the last tree; True when nothing follows."""
