"""Writers: replies of a model, whole or piece by piece as they come."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.check import check, check_ids, width
from ramet.denoise.course import Writing
from ramet.denoise.draws import Draws
from ramet.denoise.elastic import AUTO, MIN_SIZE, fixed_size
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning
from ramet.denoise.unmask_policy import USED_BY, UnmaskPolicy, check_used
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.outbox import Inbox, PieceOutbox
from ramet.engine.reply import Reply, positions
from ramet.engine.scheduler import Job
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest, RequestTooLong
from ramet.generation import OF_CANVASES, OF_MASKS, Generation, GenerationRequest, Kind, Piece
from ramet.text.conversation import Conversation


class Follow(Protocol):
    """See `Engine.follow`."""

    def __call__(self, course: MultiStepRead, salt: str) -> Job: ...


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
        loop, arrived = asyncio.get_running_loop(), Inbox()

        def end(_: Future[int]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, None)

        future, n_cached = self._start(request, lambda piece: self._post(loop, arrived, piece))
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
        """Begin; the future gives how many of the prompt's tokens were not computed again, and of that the reply is
        made."""

    @abstractmethod
    def _start(self, request: GenerationRequest, on_piece: OnPiece) -> tuple[Future[int], Callable[[], int]]:
        """Begin; how many of the prompt's tokens were not computed again is known once there is a piece."""

    def _post(self, loop: asyncio.AbstractEventLoop, inbox: Inbox, piece: Piece) -> None:
        """By the engine's thread, before the future is done."""
        loop.call_soon_threadsafe(inbox.put_nowait, piece)

    def _n_reply(self, request: GenerationRequest, most: int, room: int, unit: str = "") -> int:
        """Tokens of a reply: those that a request asks for, or, where it leaves that open, `most` or as many as there
        is `room` for. unit: how positions are taken, if not one by one. Raises RequestTooLong."""
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


class CanvasWriter(Writer):
    """Of a model that denoises canvases: a reply is a course."""

    def __init__(self, denoising: CanvasConfig, conversation: Conversation, max_length: int, follow: Follow) -> None:
        super().__init__(conversation, max_length)
        self.denoising, self._follow = denoising, follow

    @property
    def kind(self) -> Kind:
        return "canvas"

    @property
    def vocab_size(self) -> int:
        return self.denoising.vocab_size

    def _whole(self, request: GenerationRequest) -> tuple[Future[int], Callable[[int], Generation]]:
        pieces: list[Piece] = []
        future, _ = self._start(request, pieces.append)
        n_prompt = len(request.prompt)
        return future, lambda n_cached: Generation.of(pieces, n_prompt=n_prompt, n_cached=n_cached)

    def _start(self, request: GenerationRequest, on_piece: OnPiece) -> tuple[Future[int], Callable[[], int]]:
        request = self._fitted(request)
        job = self._follow(Writing(request, self.denoising, on_piece), request.cache_salt)
        return job.future, lambda: job.n_resumed or 0

    def _fitted(self, request: GenerationRequest) -> GenerationRequest:
        """With no more tokens than there is room for, in whole canvases, where a request leaves their number open."""
        check(request, self.denoising)
        n_rows = width(request, self.denoising)
        room = (self.max_length - len(request.prompt)) // n_rows * n_rows
        unit = f" in whole canvases of {n_rows} rows"
        if request.read_only:  # one canvas, whatever is told of it
            self._n_reply(replace(request, max_tokens=n_rows), n_rows, room, unit)
            return request
        n_tokens = self._n_reply(request, self.denoising.max_new_tokens, room, unit)
        return request if request.max_tokens is not None else replace(request, max_tokens=n_tokens)


@dataclass(frozen=True, slots=True)
class Sampled:
    """How ids are drawn where a request does not say it."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def describe(self) -> str:
        """For people."""
        if not self.temperature:
            return "the likeliest"
        return f"at temperature {self.temperature:g}, top_k {self.top_k}, top_p {self.top_p:g}"


class ReplyWriter(Writer):
    """Of a model that fills in masks, or writes token by token: a reply goes on beside all others.

    masking: of the former; stop_ids: ids that end a reply; sampled: how the model draws unless told. `begin` hands a
    reply to the engine, which sends the `mail` when it has told of a round.
    """

    def __init__(
        self, conversation: Conversation, max_length: int, *, masking: BlockConfig | None, stop_ids: frozenset[int],
        vocab_size: int, sampled: Sampled, settings: EngineSettings, begin: Callable[[Reply], None], mail: PieceOutbox,
    ) -> None:  # fmt: skip
        size = 1 if masking is None else masking.size
        super().__init__(conversation, max_length // size * size)
        self._unit = "" if masking is None else f" in whole blocks of {size} rows"
        self._masking, self._stop_ids, self._vocab_size, self._sampled = masking, stop_ids, vocab_size, sampled
        self._settings, self._begin, self._mail = settings, begin, mail

    @property
    def kind(self) -> Kind:
        return "next" if self._masking is None else "masks"

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def _whole(self, request: GenerationRequest) -> tuple[Future[int], Callable[[int], Generation]]:
        reply = self._reply(request, None)
        self._begin(reply)
        return reply.future, lambda n_cached: _generation(reply, n_cached)

    def _start(self, request: GenerationRequest, on_piece: OnPiece) -> tuple[Future[int], Callable[[], int]]:
        reply = self._reply(request, on_piece)
        self._begin(reply)
        return reply.future, lambda: reply.n_cached or 0

    def _post(self, loop: asyncio.AbstractEventLoop, inbox: Inbox, piece: Piece) -> None:
        self._mail.post(loop, inbox, piece)

    def _reply(self, request: GenerationRequest, on_piece: OnPiece | None) -> Reply:
        _check(request, self.kind, self._vocab_size)
        prompt, n_prompt = np.array(request.prompt, np.int32), len(request.prompt)
        n_tokens = self._n_reply(request, self.max_length, self.max_length - n_prompt, self._unit)
        start = n_prompt // self._masking.size * self._masking.size if self._masking else n_prompt - 1
        beginning = Beginning(
            start=start, tokens=prompt[start:], known=np.ones(n_prompt - start, np.bool_), n_prompt=n_prompt,
            told=n_prompt, end=n_prompt + n_tokens, stop_ids=frozenset() if request.ignore_eos else self._stop_ids,
            unmasking=self._unmasking(request), draws=self._draws(request, prompt),
        )  # fmt: skip
        return Reply(
            prompt, beginning, on_piece=on_piece, salt=request.cache_salt, chunk_size=self._chunk_size(request),
            repeats=request.seed is not None or self._settings.batch_invariant,
        )  # fmt: skip

    def _unmasking(self, request: GenerationRequest) -> UnmaskPolicy:
        """The request's own, the server's for what it leaves open."""
        own, settings = request, self._settings
        told: dict[str, Any] = {
            "strategy": own.unmasking_strategy or settings.unmasking_strategy,
            "threshold": settings.confidence_threshold
            if own.confidence_threshold is None
            else own.confidence_threshold,
            "steps": settings.denoising_steps if own.denoising_steps is None else own.denoising_steps,
        }
        for name in USED_BY:
            if getattr(own, name) is not None:
                check_used(name, told["strategy"])
        if own.entropy_bound is not None:
            told["entropy_bound"] = own.entropy_bound
        return UnmaskPolicy(block=1 if self._masking is None else self._masking.size, **told)

    def _draws(self, request: GenerationRequest, prompt: np.ndarray[Any, Any]) -> Draws:
        """Whatever a request says of it replaces all of the model's own."""
        said = request.temperature is not None or request.top_k or request.top_p != 1
        own = self._sampled
        temperature = own.temperature if request.temperature is None else request.temperature
        top_k, top_p = (request.top_k, request.top_p) if said else (own.top_k, own.top_p)
        return Draws(temperature=temperature, top_k=top_k, top_p=top_p, noise=Noise.of(request.seed, prompt))

    def _chunk_size(self, request: GenerationRequest) -> int | None:
        """Of one whose chunks have one size alone and at any load; None where the load chooses it."""
        own, settings = request.chunk_size, self._settings
        if self._masking is None:
            return None
        block = self._masking.size
        if own is not None and not MIN_SIZE <= own <= block:
            raise InvalidRequest(
                f"{own} is no size of a chunk: from {MIN_SIZE} to the block's {block}", field="chunk_size"
            )
        if settings.mode == "block":
            if own is not None:
                raise InvalidRequest(
                    "has no effect where whole blocks run (--mode block): leave it away", field="chunk_size"
                )
            return block
        by_load = settings.chunk_tiers is not None or settings.chunk_size == AUTO
        if own is None and by_load and request.seed is None:
            return None
        return own or fixed_size(settings.chunk_size, block, settings.chunk_tiers)


def _generation(reply: Reply, n_cached: int) -> Generation:
    assert reply.finish is not None
    told = positions(reply.tokens, reply.logprobs)
    return Generation(told, reply.finish, len(reply.prompt), n_cached, reply.n_steps, 0, reply.n_rows, reply.chunk_size)


def _check(request: GenerationRequest, kind: Kind, vocab_size: int) -> None:
    """Raise InvalidRequest for what canvases alone have, and for ids that are none."""
    if not request.prompt:
        raise InvalidRequest("a prompt needs at least one token", field="prompt")
    check_ids("prompt", request.prompt, vocab_size)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise InvalidRequest("must be at least 1", field="max_tokens")
    for name in (name for name in OF_CANVASES if getattr(request, name)):
        raise InvalidRequest("is of models with canvases", field=name)
    if request.n_best > 1 or request.logprob_ids:
        raise InvalidRequest("of a position the id that was drawn is told, and no other", field="logprobs")
    for name in (name for name in OF_MASKS if kind == "next" and getattr(request, name) is not None):
        raise InvalidRequest("is of models that fill in masks", field=name)
