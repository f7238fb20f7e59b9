"""Served: what a server needs of an engine. `ramet.engine.Engine` is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from ramet.decide.calibration import Calibration
from ramet.decision import Decision
from ramet.errors import EngineFault
from ramet.generation import GenerationRequest, Kind, Piece
from ramet.request import DecisionRequest
from ramet.text.conversation import Conversation


class Writes(Protocol):
    """What writes text. `ramet.engine.Writer` is one."""

    @property
    def kind(self) -> Kind:
        """How it writes, which decides which parameters it takes."""

    @property
    def vocab_size(self) -> int:
        """How many ids the model has."""

    @property
    def conversation(self) -> Conversation:
        """How messages become a prompt, and ids a text."""

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Write a reply, piece by piece. Raises errors of the tree in `ramet.errors`, before the first piece those that
        are known before any work. Closing the iterator cancels the work."""


class Served(Protocol):
    """An engine as the server sees it."""

    @property
    def name(self) -> str:
        """The model's name, as answers report it."""

    @property
    def fault(self) -> EngineFault | None:
        """What broke the engine; None while it works."""

    @property
    def calibration(self) -> Calibration | None:
        """What its answers hold to, where there is such a file."""

    async def decide_async(self, request: DecisionRequest) -> Decision:
        """Answer a request. Cancelling the awaiting task cancels the work. Raises errors of the tree in
        `ramet.errors`."""

    @property
    def writer(self) -> Writes:
        """What writes text. Raises NotSupported where the model decides alone."""

    def stats(self) -> Mapping[str, float]:
        """Counters and gauges by name: requests, rounds, tokens, queue length, pages."""

    def histograms(self) -> Mapping[str, Mapping[int, int]]:
        """Sizes by name: how many times each size came."""

    def describe(self) -> Mapping[str, str]:
        """What was chosen at load: the model's `fingerprint`, device, dtype, kernels, limits."""
