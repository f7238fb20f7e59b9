"""PieceOutbox: what the engine's thread tells the tasks of event loops, all of a round at once."""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop, Queue

from ramet.generation import Piece

Inbox = Queue[Piece | None]


class PieceOutbox:
    """To wake a loop takes longer than what it is told: hundreds of replies wake it once a round. Of one thread."""

    def __init__(self) -> None:
        self._held: dict[AbstractEventLoop, list[tuple[Inbox, Piece]]] = {}

    def post(self, loop: AbstractEventLoop, inbox: Inbox, piece: Piece) -> None:
        """To be sent."""
        self._held.setdefault(loop, []).append((inbox, piece))

    def send(self) -> None:
        """Deliver what was posted; what goes to a loop that is closed is lost."""
        held, self._held = self._held, {}
        for loop, letters in held.items():
            with contextlib.suppress(RuntimeError):  # closed, maybe a moment ago
                loop.call_soon_threadsafe(_deliver, letters)


def _deliver(letters: list[tuple[Inbox, Piece]]) -> None:
    for inbox, piece in letters:
        inbox.put_nowait(piece)
