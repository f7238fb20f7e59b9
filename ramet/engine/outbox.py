"""PieceOutbox: pieces on their way from the engine's thread to the tasks of event loops, a round's at once."""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop, Queue

from ramet.generation import Piece

PieceQueue = Queue[Piece | None]


class PieceOutbox:
    """To wake an event loop takes longer than to hand it a piece: hundreds of replies wake it once a round. Of one
    thread."""

    def __init__(self) -> None:
        self._held: dict[AbstractEventLoop, list[tuple[PieceQueue, Piece]]] = {}

    def post(self, loop: AbstractEventLoop, inbox: PieceQueue, piece: Piece) -> None:
        """To be sent."""
        self._held.setdefault(loop, []).append((inbox, piece))

    def send(self) -> None:
        """Deliver what was posted; what goes to a loop that is closed is lost."""
        held, self._held = self._held, {}
        for loop, letters in held.items():
            with contextlib.suppress(RuntimeError):  # closed, maybe a moment ago
                loop.call_soon_threadsafe(_deliver, letters)


def _deliver(letters: list[tuple[PieceQueue, Piece]]) -> None:
    for inbox, piece in letters:
        inbox.put_nowait(piece)
