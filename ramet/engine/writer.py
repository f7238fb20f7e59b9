"""Writers: replies of a model, whole or piece by piece as they come."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import replace

from ramet.engine.outbox import PieceQueue
from ramet.errors import RequestTooLong
from ramet.generation import Generation, GenerationRequest, Kind, Piece
from ramet.text.conversation import Conversation

OnPiece = Callable[[Piece], None]


class Writer(ABC):
    """How an engine writes: `Engine.writer`. Its `conversation` makes prompts, and `max_length` is what a prompt and
    its reply may have together, in tokens. Safe to use from any number of threads and tasks."""

    def __init__(self, conversation: Conversation, max_length: int) -> None:
        """conversation: how messages become prompts. max_length: positions of a prompt with its reply."""
        self.conversation, self.max_length = conversation, max_length

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """How the model writes: in canvases of noise, in blocks of masks, or token by token."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """How many ids the model has."""

    def generate(self, request: GenerationRequest) -> Generation:
        """Write a whole reply, and wait for it.

        Raises, before any work, InvalidRequest for what is out of range or is not of this kind of model, RequestTooLong
        where the prompt and its reply do not fit, Overloaded; Cancelled and EngineFault as `Engine.decide` does.
        """
        work, finished = self._whole(request)
        return finished(work.result())

    async def generate_async(self, request: GenerationRequest) -> Generation:
        """As `generate`, for tasks; cancelling the awaiting task cancels the work."""
        work, finished = self._whole(request)
        return finished(await asyncio.wrap_future(work))

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Each piece as soon as it is known; the last one has a `finish`. Raises as `generate` does, before the first
        piece what can be known before any work. Closing the iterator cancels the work."""
        loop, arrived = asyncio.get_running_loop(), PieceQueue()

        def end(_: Future[int]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, None)

        future, n_cached = self.start(request, lambda piece: self._post(loop, arrived, piece))
        future.add_done_callback(end)
        try:
            is_last = False
            while not is_last and (piece := await arrived.get()) is not None:
                is_last = piece.finish is not None
                if is_last:
                    await arrived.get()  # the engine's own end: whoever goes with the last piece cancels nothing
                yield replace(piece, n_cached=n_cached())
            future.result()
        finally:
            future.cancel()

    @abstractmethod
    def _whole(self, request: GenerationRequest) -> tuple[Future[int], Callable[[int], Generation]]:
        """Begin a reply. Returns a future, whose result is the number of the prompt's tokens that were not computed
        again, and a function that makes the whole reply of that number."""

    @abstractmethod
    def start(self, request: GenerationRequest, on_piece: OnPiece) -> tuple[Future[int], Callable[[], int]]:
        """Begin a reply. The engine's thread calls `on_piece` with each piece.

        Returns a future, whose result is the number of the prompt's tokens that were not computed again, and a function
        that returns this number as soon as there is a piece. Raises as `generate` does, before any work.
        """

    def _post(self, loop: asyncio.AbstractEventLoop, inbox: PieceQueue, piece: Piece) -> None:
        """By the engine's thread, before the future is done."""
        loop.call_soon_threadsafe(inbox.put_nowait, piece)

    def _n_reply(self, request: GenerationRequest, most: int, room: int, unit: str = "") -> int:
        """The most tokens of a reply: the request's max_tokens, or, where it leaves that open, `most` or as many as
        there is `room` for. unit: how replies take positions, if not one by one. Raises RequestTooLong."""
        n_prompt = len(request.prompt)
        if request.max_tokens is None and room > 0:
            return min(most, room)
        n_reply = request.max_tokens or 1
        if n_reply > room:
            what, field = ("prompt", "prompt") if room < 1 else ("reply", "max_tokens")
            raise RequestTooLong(
                f"a prompt of {n_prompt} tokens and a reply of {n_reply} are more than the {self.max_length} that the "
                f"model takes{unit} (max_model_len): shorten the {what}",
                field=field,
            )
        return n_reply
