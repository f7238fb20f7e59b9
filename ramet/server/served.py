"""Served: what a server needs of an engine. `ramet.engine.Engine` is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ramet.errors import EngineFault
from ramet.request import Decision, DecisionRequest


class Served(Protocol):
    """An engine as the server sees it."""

    @property
    def name(self) -> str:
        """The model's name, as answers report it."""

    @property
    def fault(self) -> EngineFault | None:
        """Why the engine is broken; None while it works."""

    async def decide_async(self, request: DecisionRequest) -> Decision:
        """Answer. Cancelling the awaiting task cancels the work. Raises errors of the tree in `ramet.errors`."""

    def stats(self) -> Mapping[str, float]:
        """Counters and gauges by name: requests, rounds, tokens, queue length, pages."""

    def describe(self) -> Mapping[str, str]:
        """What was chosen at load: device, dtype, kernels, limits."""
