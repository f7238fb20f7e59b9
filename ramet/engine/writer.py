"""Writer: replies of a model that denoises them, whole or canvas by canvas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ramet.denoise.course import Writing
from ramet.denoise.settings import Denoising
from ramet.engine.course import Course
from ramet.engine.scheduler import Job
from ramet.errors import RequestTooLong
from ramet.generation import Generation, GenerationRequest, Kind, Piece
from ramet.text.conversation import Conversation


class Follow(Protocol):
    """See `Engine.follow`."""

    def __call__(self, course: Course, salt: str) -> Job: ...


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """How an engine writes. conversation: how messages become prompts. max_length: of a prompt with its reply, in
    tokens."""

    denoising: Denoising
    conversation: Conversation
    max_length: int
    follow: Follow

    @property
    def kind(self) -> Kind:
        return "canvas"

    def generate(self, request: GenerationRequest) -> Generation:
        """The whole reply."""
        pieces: list[Piece] = []
        n_cached: int = self._start(request, pieces.append).future.result()
        return Generation.of(pieces, n_prompt=len(request.prompt), n_cached=n_cached)

    async def generate_async(self, request: GenerationRequest) -> Generation:
        """As `generate`; cancelling the awaiting task cancels the work."""
        pieces: list[Piece] = []
        n_cached: int = await asyncio.wrap_future(self._start(request, pieces.append).future)
        return Generation.of(pieces, n_prompt=len(request.prompt), n_cached=n_cached)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Each canvas as soon as it is finished. Raises before the first what can be known before any work; closing the
        iterator cancels the work."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Piece | None]()

        def hand(piece: Piece | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, piece)

        job = self._start(request, hand)
        future = job.future
        future.add_done_callback(lambda _: None if loop.is_closed() else hand(None))
        try:
            is_last = False
            while not is_last and (piece := await arrived.get()) is not None:
                is_last = piece.finish is not None
                if is_last:
                    await arrived.get()  # the engine's own end: whoever goes with the last piece cancels nothing
                yield replace(piece, n_cached=job.n_resumed or 0)
            future.result()
        finally:
            future.cancel()

    def _start(self, request: GenerationRequest, on_piece: Callable[[Piece], None]) -> Job:
        request = self._fitted(request)
        return self.follow(Writing(request, self.denoising, on_piece), request.cache_salt)

    def _fitted(self, request: GenerationRequest) -> GenerationRequest:
        """With no more tokens than there is room for, where a request leaves their number open."""
        n_prompt, room = len(request.prompt), self.max_length - len(request.prompt)
        if request.read_only:  # its canvas may end behind the last position: see `Engine._in_two_steps`
            if room < 0:
                raise RequestTooLong(f"a prompt of {n_prompt} tokens; the model takes {self.max_length}")
            return request
        if request.max_tokens is None and room > 0:
            return replace(request, max_tokens=min(self.denoising.max_new_tokens, room))
        n_reply = request.max_tokens or 1
        if n_reply > room:
            raise RequestTooLong(
                f"a prompt of {n_prompt} tokens and a reply of {n_reply} are more than the {self.max_length} that the "
                "model takes; lower max_tokens"
            )
        return request
