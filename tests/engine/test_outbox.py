"""Mail to loops that are open, and that are not."""

from __future__ import annotations

import asyncio
from typing import Any

from ramet.engine.outbox import PieceOutbox, PieceQueue
from ramet.generation import Piece


class Closed(asyncio.AbstractEventLoop):
    """A loop that was open a moment ago."""

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> asyncio.Handle:
        raise RuntimeError("Event loop is closed")


def test_a_loop_that_has_just_been_closed_keeps_nobody_else_waiting() -> None:
    mail, piece = PieceOutbox(), Piece((), 1)

    async def arrived() -> list[Piece | None]:
        inbox = PieceQueue()
        mail.post(Closed(), PieceQueue(), piece)
        for _ in range(2):
            mail.post(asyncio.get_running_loop(), inbox, piece)
        mail.send()
        return [await inbox.get(), await inbox.get()]

    assert asyncio.run(arrived()) == [piece, piece]
