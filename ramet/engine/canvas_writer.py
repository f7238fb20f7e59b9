"""CanvasWriter: replies of a model that denoises canvases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.canvas_reply import CanvasReply
from ramet.denoise.check import check, width
from ramet.engine.job import Job
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.writer import OnPiece, Writer
from ramet.generation import Generation, GenerationRequest, Kind, Piece
from ramet.text.conversation import Conversation


class Follow(Protocol):
    """See `Engine.follow`."""

    def __call__(self, read: MultiStepRead, salt: str) -> Job: ...


class CanvasWriter(Writer):
    """Writes the replies of a model that denoises canvases, each as a read of several steps."""

    def __init__(self, canvases: CanvasConfig, conversation: Conversation, max_length: int, follow: Follow) -> None:
        super().__init__(conversation, max_length)
        self.canvases, self._follow = canvases, follow

    @property
    def kind(self) -> Kind:
        return "canvas"

    @property
    def vocab_size(self) -> int:
        return self.canvases.vocab_size

    def _whole(self, request: GenerationRequest) -> tuple[Future[int], Callable[[int], Generation]]:
        pieces: list[Piece] = []
        future, _ = self.start(request, pieces.append)
        n_prompt = len(request.prompt)
        return future, lambda n_cached: Generation.of(pieces, n_prompt=n_prompt, n_cached=n_cached)

    def start(self, request: GenerationRequest, on_piece: OnPiece) -> tuple[Future[int], Callable[[], int]]:
        request = self._fitted(request)
        job = self._follow(CanvasReply(request, self.canvases, on_piece), request.cache_salt)
        return job.future, lambda: job.n_resumed or 0

    def _fitted(self, request: GenerationRequest) -> GenerationRequest:
        """With no more tokens than there is room for, in whole canvases, where a request leaves their number open."""
        check(request, self.canvases)
        n_rows = width(request, self.canvases)
        room = (self.max_length - len(request.prompt)) // n_rows * n_rows
        unit = f" in whole canvases of {n_rows} rows"
        if request.read_only:  # one canvas, however many of its tokens the reply has
            self._n_reply(replace(request, max_tokens=n_rows), n_rows, room, unit)
            return request
        n_tokens = self._n_reply(request, self.canvases.max_new_tokens, room, unit)
        return request if request.max_tokens is not None else replace(request, max_tokens=n_tokens)
