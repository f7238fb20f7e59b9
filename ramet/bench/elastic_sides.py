"""Whose steps `ramet bench elastic` times: an engine on random weights, in each of its modes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch

from ramet.bench.block_shapes import BLOCK, masking_of
from ramet.bench.curve_judge import Clock, Judge, Seen
from ramet.bench.random_model import RandomModel
from ramet.bench.reads_sides import free_bytes
from ramet.decide.decider import Decider
from ramet.engine.compiled_blocks import live_blocks
from ramet.engine.engine import Engine
from ramet.engine.replies import Replies
from ramet.engine.settings import EngineSettings
from ramet.engine.writer import OnPiece
from ramet.errors import RametError
from ramet.generation import GenerationRequest
from ramet.layers.storage import row_bytes
from ramet.text.conversation import Conversation

Mode = Literal["auto", "block", "next"] | int  # an integer: chunks of that size
MAX_TOKENS = 4096  # of a reply, that is none to end while it is timed
_LEAST_ROWS = 1 << 15  # of pages, for replies that come at random
_MAX_QUEUE = 1 << 20  # requests, for those that come faster than they are served wait
_SHARE = 3  # pages take this part of the free memory at most


@dataclass(slots=True)
class Side:
    """An engine that writes replies to random ids. n_prompt: tokens of a prompt; some have a few more, so that blocks
    begin at different times. threshold: of requests; judges are sure or not at all, so that any will do."""

    engine: Engine
    masking: Any
    n_prompt: int
    vocab_size: int
    threshold: float = 0.5

    @classmethod
    @contextmanager
    def opened(
        cls, model: RandomModel, settings: EngineSettings, *, n_prompt: int, batch: int, causal: bool = False
    ) -> Iterator[Side]:
        """Settings are resolved ones; `batch` replies at once, at most (or two, for one does not choose its
        chunks), and pages that hold them for a while, where memory allows for it. causal: the
        same layers, token by token."""
        masking = None if causal else masking_of(model.name)
        n_rows = max(_LEAST_ROWS, batch * (n_prompt + BLOCK + MAX_TOKENS // 4))
        settings = replace(
            settings, cache_bytes=_cache_bytes(model, settings, n_rows), max_round_requests=max(2, batch)
        )
        nobody = cast(Decider, SimpleNamespace(settings=SimpleNamespace(method="replies to random ids")))
        mute = cast(Conversation, SimpleNamespace(tokenizer=SimpleNamespace(stop_ids=())))
        with Engine(model.name, model.decoder, nobody, settings, None, mute, masking) as engine:
            engine.measure()
            side = cls(engine, masking, n_prompt, model.config.get_text_config().vocab_size)
            yield side
        del engine, side.engine  # whoever still has the side has no engine: another needs its memory
        gc.collect()
        if model.decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def replies(self) -> Replies:
        assert self.engine.replies is not None
        return self.engine.replies

    def forget(self) -> None:
        """What was seen of commits: each threshold has an estimate of its own."""
        self.threshold += 1e-3

    def run(
        self, mode: Mode, batch: int, judge: Judge | None, *, n_steps: int, limit_s: float, n_warm: int = 4
    ) -> list[Seen]:
        """Steps of `batch` replies, none of which ends or begins in between."""
        return asyncio.run(self._run(mode, batch, judge, n_steps, limit_s, n_warm))

    async def _run(
        self, mode: Mode, batch: int, judge: Judge | None, n_steps: int, limit_s: float, n_warm: int
    ) -> list[Seen]:
        loop, enough = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            loop.call_soon_threadsafe(enough.set)

        clock = Clock(judge, batch, n_steps, limit_s, stop, n_warm)
        with self.judged(mode, clock):
            tasks = [asyncio.create_task(self._reply(i, mode)) for i in range(batch)]
            waiting = asyncio.create_task(enough.wait())
            done, _ = await asyncio.wait((waiting, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for task in (waiting, *tasks):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self._rest()
        if waiting not in done:
            raise _error(outcomes)
        return clock.seen

    @contextmanager
    def judged(self, mode: Mode, judge: Judge) -> Iterator[None]:
        """Draws are judged so, and replies go on in that mode, as long as the `with` block lasts; no reply is under way
        before it or behind."""
        replies, live = self.replies, self.replies.live
        before, replies.judge = replies.judge, judge
        if mode == "block":
            replies.live = live_blocks(self.masking.size, self.masking.mask, mode="block")
        try:
            yield
        finally:
            replies.judge, replies.live = before, live

    def begin(self, request: GenerationRequest, on_piece: OnPiece) -> Future[int]:
        """A reply whose pieces the engine's own thread tells."""
        return self.engine.writer._start(request, on_piece)[0]

    def end(self, replies: Sequence[Future[int]]) -> None:
        """Cancel what is under way. Raises what a reply ended with."""
        for reply in replies:
            reply.cancel()
        asyncio.run(self._rest())
        for reply in replies:
            if not reply.cancelled():
                reply.result()

    async def _rest(self) -> None:
        """Until the engine has let go of replies that were cancelled; it tells nobody."""
        while len(self.replies):  # noqa: ASYNC110
            await asyncio.sleep(1e-3)

    async def _reply(self, number: int, mode: Mode) -> None:
        await self.engine.writer.generate_async(self.request(number, mode))

    def request(self, number: int, mode: Mode, n_prompt: int | None = None, n_tokens: int | None = None) -> Any:
        """The same number has the same prompt, which is in pages from the second time on."""
        n = (n_prompt or self.n_prompt) + (0 if n_prompt else number % BLOCK)
        prompt = np.random.default_rng(number).integers(0, self._n_ids, n).tolist()
        room = self.engine.writer.max_length - n
        return GenerationRequest(
            prompt=tuple(prompt), max_tokens=n_tokens or min(MAX_TOKENS, room), ignore_eos=True, temperature=0.0,
            chunk_size=mode if isinstance(mode, int) else None,
            confidence_threshold=None if self.masking is None else self.threshold,
        )  # fmt: skip

    @property
    def _n_ids(self) -> int:
        return self.vocab_size if self.masking is None else min(self.vocab_size, self.masking.mask)


def _error(outcomes: Sequence[object]) -> BaseException:
    """Why replies ended before they were timed."""
    wrong = [each for each in outcomes if isinstance(each, Exception)]
    return wrong[0] if wrong else RametError("no figures: replies ended before enough of their steps were timed")


def _cache_bytes(model: RandomModel, settings: EngineSettings, n_rows: int) -> int:
    assert settings.cache_bytes is not None
    wanted = n_rows * row_bytes(model.decoder.shape, model.decoder.dtype)
    return max(min(settings.cache_bytes, wanted), min(wanted, free_bytes(model.decoder.device) // _SHARE))
