"""ReplyWriter: replies of a model that fills in masks, or writes token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramet.denoise.block_config import BlockConfig
from ramet.denoise.check import check_ids
from ramet.denoise.draws import Draws
from ramet.denoise.elastic import AUTO, MIN_SIZE, fixed_size
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning
from ramet.denoise.unmask_policy import USED_BY, UnmaskPolicy, check_used
from ramet.engine.outbox import PieceOutbox, PieceQueue
from ramet.engine.reply import Reply, positions
from ramet.engine.settings import EngineSettings
from ramet.engine.writer import OnPiece, Writer
from ramet.errors import InvalidRequest
from ramet.generation import OF_CANVASES, OF_MASKS, Generation, GenerationRequest, Kind, Piece
from ramet.text.conversation import Conversation


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
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
    """Writes the replies of a model that fills in masks, or writes token by token, each beside all others.

    blocks: of the former; stop_ids: ids that end a reply; sampling: how the model draws where a request leaves it open.
    `begin` hands a reply to the engine, which sends the `outbox` when it has emitted what a round made known.
    """

    def __init__(
        self, conversation: Conversation, max_length: int, *, blocks: BlockConfig | None, stop_ids: frozenset[int],
        vocab_size: int, sampling: SamplingDefaults, settings: EngineSettings, begin: Callable[[Reply], None],
        outbox: PieceOutbox,
    ) -> None:  # fmt: skip
        size = 1 if blocks is None else blocks.size
        super().__init__(conversation, max_length // size * size)
        self._unit = "" if blocks is None else f" in whole blocks of {size} rows"
        self._blocks, self._stop_ids, self._vocab_size, self._sampling = blocks, stop_ids, vocab_size, sampling
        self._settings, self._begin, self._outbox = settings, begin, outbox

    @property
    def kind(self) -> Kind:
        return "next" if self._blocks is None else "masks"

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def _whole(self, request: GenerationRequest) -> tuple[Future[int], Callable[[int], Generation]]:
        reply = self._reply(request, None)
        self._begin(reply)
        return reply.future, lambda n_cached: _generation(reply, n_cached)

    def start(self, request: GenerationRequest, on_piece: OnPiece) -> tuple[Future[int], Callable[[], int]]:
        reply = self._reply(request, on_piece)
        self._begin(reply)
        return reply.future, lambda: reply.n_cached or 0

    def _post(self, loop: asyncio.AbstractEventLoop, inbox: PieceQueue, piece: Piece) -> None:
        self._outbox.post(loop, inbox, piece)

    def _reply(self, request: GenerationRequest, on_piece: OnPiece | None) -> Reply:
        _check(request, self.kind, self._vocab_size)
        prompt, n_prompt = np.array(request.prompt, np.int32), len(request.prompt)
        n_tokens = self._n_reply(request, self.max_length, self.max_length - n_prompt, self._unit)
        start = n_prompt // self._blocks.size * self._blocks.size if self._blocks else n_prompt - 1
        beginning = Beginning(
            start=start, tokens=prompt[start:], known=np.ones(n_prompt - start, np.bool_), n_prompt=n_prompt,
            emitted=n_prompt, end=n_prompt + n_tokens, stop_ids=frozenset() if request.ignore_eos else self._stop_ids,
            unmasking=self._policy(request), draws=self._draws(request, prompt),
        )  # fmt: skip
        return Reply(
            prompt, beginning, on_piece=on_piece, salt=request.cache_salt, chunk_size=self._chunk_size(request),
            repeats=request.seed is not None or self._settings.batch_invariant,
        )  # fmt: skip

    def _policy(self, request: GenerationRequest) -> UnmaskPolicy:
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
        return UnmaskPolicy(block=1 if self._blocks is None else self._blocks.size, **told)

    def _draws(self, request: GenerationRequest, prompt: np.ndarray[Any, Any]) -> Draws:
        """Whatever a request says of it replaces all of the model's own."""
        said = request.temperature is not None or request.top_k or request.top_p != 1
        own = self._sampling
        temperature = own.temperature if request.temperature is None else request.temperature
        top_k, top_p = (request.top_k, request.top_p) if said else (own.top_k, own.top_p)
        return Draws(temperature=temperature, top_k=top_k, top_p=top_p, noise=Noise.of(request.seed, prompt))

    def _chunk_size(self, request: GenerationRequest) -> int | None:
        """Of one whose chunks have one size alone and at any load; None where the load chooses it."""
        own, settings = request.chunk_size, self._settings
        if self._blocks is None:
            return None
        block = self._blocks.size
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
        raise InvalidRequest(
            "a position reports the log-probability of the id that was drawn, and of no other", field="logprobs"
        )
    for name in (name for name in OF_MASKS if kind == "next" and getattr(request, name) is not None):
        raise InvalidRequest("is of models that fill in masks", field=name)
