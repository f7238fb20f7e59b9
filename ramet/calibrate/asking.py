"""Asking: labelled rows through an engine, several at a time, at the temperature 1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ramet.calibrate.rows import LabelledRow
from ramet.decision import Answer, Decision
from ramet.errors import Overloaded, RequestError
from ramet.request import DecisionRequest

Answered = tuple[LabelledRow, Mapping[str, Answer]]
Unanswered = tuple[LabelledRow, RequestError]


class Decides(Protocol):
    """What answers requests. `ramet.engine.Engine` is one."""

    async def decide_async(self, request: DecisionRequest) -> Decision:
        """Raises errors of the tree in `ramet.errors`."""


async def ask(
    engine: Decides, rows: Sequence[LabelledRow], n_parallel: int, advance: Callable[[], None]
) -> tuple[list[Answered], list[Unanswered]]:
    """The rows with their answers, and those whose request the engine refuses. Raises EngineFault."""
    gate = asyncio.Semaphore(n_parallel)

    async def one(row: LabelledRow) -> Mapping[str, Answer] | RequestError:
        async with gate:
            try:
                return await _answers(engine, row)
            except RequestError as error:
                return error
            finally:
                advance()

    tasks = [asyncio.create_task(one(row)) for row in rows]
    try:
        found = [*zip(rows, await asyncio.gather(*tasks), strict=True)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    answered = [(row, answers) for row, answers in found if not isinstance(answers, RequestError)]
    return answered, [(row, error) for row, error in found if isinstance(error, RequestError)]


async def _answers(engine: Decides, row: LabelledRow) -> Mapping[str, Answer]:
    request = row.request.model_copy(update={"x_temperature": 1.0})
    while True:
        try:
            return (await engine.decide_async(request)).answers
        except Overloaded as error:
            await asyncio.sleep(min(error.retry_after_s, 1.0))
