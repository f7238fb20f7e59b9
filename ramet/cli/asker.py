"""Asker: who answers the requests of a run, an engine of our own here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ramet.cli.reply_row import asks_for_text, reply_row, text_request
from ramet.errors import EngineFault, Overloaded
from ramet.request import DecisionRequest

if TYPE_CHECKING:
    from ramet.engine import Engine

Row = dict[str, Any]
MAX_WAIT_S = 1.0  # of a row that found the queue full: the engine is ours, and there is no crowd to keep away


class Asker(Protocol):
    """`fields` are put over those of each decision. `fault` is what stops the run: other rows would have it too.
    Answers are asked for within `async with`."""

    @property
    def fields(self) -> Mapping[str, Any]: ...

    @property
    def fault(self) -> EngineFault | None: ...

    async def ask(self, request: Mapping[str, Any]) -> Row:
        """What an answered row says: the model, the answers or the text, and the usage, less what depends on the
        moment, so that a run that goes on writes what one without a stop would. Raises errors of `ramet.errors`."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class EngineAsker:
    """The loaded engine; `fields` are put over those of each decision."""

    engine: Engine
    fields: Mapping[str, Any]

    @property
    def fault(self) -> EngineFault | None:
        return self.engine.fault

    async def __aenter__(self) -> EngineAsker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The engine is its loader's to close."""

    async def ask(self, request: Mapping[str, Any]) -> Row:
        if asks_for_text(request):
            reply = text_request(request, self.engine.name)
            return await self._when_there_is_room(lambda: reply_row(self.engine, reply))
        decision = DecisionRequest.parse({**request, **self.fields, "model": self.engine.name})
        return await self._when_there_is_room(lambda: self._decided(decision))

    async def _decided(self, request: DecisionRequest) -> Row:
        decision = await self.engine.decide_async(request)
        answered: Row = decision.model_dump(mode="json", exclude={"x_timing": True, "usage": {"x_cached_tokens"}})
        return answered

    async def _when_there_is_room(self, ask: Any) -> Row:
        while True:
            try:
                row: Row = await ask()
                return row
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after_s, MAX_WAIT_S))
