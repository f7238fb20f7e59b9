"""An engine on random weights whose steps `ramet bench elastic` times, in each of its modes, and the requests at random
that it serves."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import torch

from ramet.bench.core.named_shapes import BLOCK, block_config_of
from ramet.bench.core.random_model import RandomModel, free_bytes
from ramet.bench.elastic.commit_curves import Dataset
from ramet.bench.elastic.judge import Judge, JudgedReplies, SeenStep, StepClock
from ramet.bench.elastic.report import WHOLE
from ramet.bench.elastic.traces import Arrivals, Floats, Ints, Trace, most_requests
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.running import RunningReplies
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.engine.writer import OnPiece
from ramet.errors import RametError
from ramet.generation import GenerationRequest, Piece
from ramet.text.conversation import Conversation
from ramet.tree import BoolArray

MAX_TOKENS = 4096  # of a reply, that is none to end while it is timed
_LEAST_ROWS = 1 << 15  # of pages, for replies that come at random
_SHARE = 3  # pages take this part of the free memory at most


@dataclass(slots=True)
class Side:
    """An engine that writes replies to random ids. blocks: None for token by token. n_prompt: tokens of a prompt; some
    have a few more, so that blocks begin at different times. threshold: of requests; judges are sure or not at all, so
    that any will do."""

    engine: Engine
    blocks: BlockConfig | None
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
        blocks = None if causal else block_config_of(model.name)
        n_rows = max(_LEAST_ROWS, batch * (n_prompt + BLOCK + MAX_TOKENS // 4))
        cache_bytes = _cache_bytes(model, settings, n_rows)
        settings = replace(settings, cache_bytes=cache_bytes, max_round_requests=max(2, batch))
        mute = cast(Conversation, SimpleNamespace(tokenizer=SimpleNamespace(stop_ids=())))
        with model.engine(settings, None, mute, blocks) as engine:
            engine.measure()
            side = cls(engine, blocks, n_prompt, model.vocab_size)
            yield side
        del engine, side.engine  # whoever still has the side has no engine: another needs its memory
        gc.collect()
        if model.decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def forget(self) -> None:
        """What was seen of commits: each threshold has an estimate of its own."""
        self.threshold += 1e-3

    def run(
        self, mode: str, batch: int, judge: Judge | None, *, n_steps: int, limit_s: float, n_warm: int = 4
    ) -> list[SeenStep]:
        """Steps of `batch` replies, none of which ends or begins in between."""
        return asyncio.run(self._run(mode, StepClock(judge, batch, n_steps, limit_s, n_warm=n_warm)))

    async def _run(self, mode: str, clock: StepClock) -> list[SeenStep]:
        loop, enough = asyncio.get_running_loop(), asyncio.Event()
        clock.enough = lambda: cast(None, loop.call_soon_threadsafe(enough.set))
        with self.judged(mode, clock):
            tasks = [asyncio.create_task(self._reply(i, mode)) for i in range(clock.batch)]
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
    def judged(self, mode: str, judge: Judge) -> Iterator[None]:
        """Draws are as sure as the judge says, and replies go on in that mode, as long as the `with` block lasts; no
        reply is under way before it or behind."""
        decoding = self.engine.decoding
        assert decoding is not None
        before = running = decoding.running
        if mode == WHOLE:
            assert self.blocks is not None
            running = self.engine.runner.host.blocks(self.blocks.size, self.blocks.mask, mode="block")
        decoding.running = cast(RunningReplies, JudgedReplies(running, judge))
        try:
            yield
        finally:
            decoding.running = before

    def begin(self, request: GenerationRequest, on_piece: OnPiece) -> Future[int]:
        """A reply whose pieces the engine's own thread reports."""
        return self.engine.writer.start(request, on_piece)[0]

    def end(self, replies: Sequence[Future[int]]) -> None:
        """Cancel what is under way. Raises what a reply ended with."""
        for reply in replies:
            reply.cancel()
        asyncio.run(self._rest())
        for reply in replies:
            if not reply.cancelled():
                reply.result()

    async def _rest(self) -> None:
        """Until the engine has let go of replies that were cancelled, of which it says nothing."""
        while any(self.engine.stats()[f"replies_{name}"] for name in ("live", "waiting")):  # noqa: ASYNC110
            await asyncio.sleep(1e-3)

    async def _reply(self, number: int, mode: str) -> None:
        await self.engine.writer.generate_async(self.request(number, mode))

    def request(self, number: int, mode: str, n_prompt: int | None = None, n_tokens: int | None = None) -> Any:
        """The same number has the same prompt, which is in pages from the second time on."""
        n = (n_prompt or self.n_prompt) + (0 if n_prompt else number % BLOCK)
        n_ids = self.vocab_size if self.blocks is None else min(self.vocab_size, self.blocks.mask)
        room = self.engine.writer.max_length - n
        return GenerationRequest(
            prompt=tuple(np.random.default_rng(number).integers(0, n_ids, n).tolist()),
            max_tokens=n_tokens or min(MAX_TOKENS, room), ignore_eos=True, temperature=0.0,
            chunk_size=int(mode) if mode.isdecimal() else None,
            confidence_threshold=None if self.blocks is None else self.threshold,
        )  # fmt: skip


def _error(outcomes: Sequence[object]) -> BaseException:
    """Why replies ended before they were timed."""
    wrong = [each for each in outcomes if isinstance(each, Exception)]
    return wrong[0] if wrong else RametError("no figures: replies ended before enough of their steps were timed")


def _cache_bytes(model: RandomModel, settings: EngineSettings, n_rows: int) -> int:
    assert settings.cache_bytes is not None
    wanted = model.bytes_of(n_rows)
    return max(min(settings.cache_bytes, wanted), min(wanted, free_bytes(model.decoder.device) // _SHARE))


@dataclass(slots=True)
class _Heard:
    """Of each request [N], reported by the engine's thread: whether it has got anything, and of what it got from
    `since` and before `until` on, when its first tokens and its last were there, and how many these are. Tasks of
    others, which would wait for the interpreter beside the engine, have no part in it."""

    some: BoolArray
    first: Floats
    last: Floats
    n_tokens: Ints
    since: float = np.inf
    until: float = np.inf

    @classmethod
    def of(cls, n: int) -> Self:
        return cls(np.zeros(n, np.bool_), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))

    def begin(self, seconds: float) -> float:
        """Listen for so long from now on; returns when that is."""
        began = time.perf_counter()
        self.until = began + seconds
        self.since = began
        return began

    def hear(self, number: int, piece: Piece) -> None:
        if not piece.positions:
            return
        self.some[number], now = True, time.perf_counter()
        if not self.since <= now < self.until:
            return
        self.last[number] = now
        if not self.n_tokens[number]:
            self.first[number] = now
        self.n_tokens[number] += len(piece.positions)


def measured(
    side: Side, mode: str, dataset: Dataset, judge: Judge | None, *, rate: float, seconds: float, n_begun: int,
    seed: int, number: int,
) -> Trace:  # fmt: skip
    """What the engine does with requests of random ids that come at random for so many seconds, behind n_begun that are
    under way; then all are cancelled. The time that draws are judged for is in it. number: of the first one's ids,
    which others are not to have."""
    all_of = Arrivals.at_random(dataset, rate, most_requests(rate, seconds), np.random.default_rng(seed), n_begun)
    room, n = side.engine.writer.max_length // 2, int((all_of.came < seconds).sum())
    came, sizes = all_of.came[:n], np.minimum((all_of.prompts, all_of.n_tokens), room)[:, :n].T.tolist()
    requests = [
        side.request(i, mode, None, n_tokens) if i < n_begun else side.request(number + i, mode, n_prompt, n_tokens)
        for i, (n_prompt, n_tokens) in enumerate(sizes)
    ]
    heard, clock = _Heard.of(n), StepClock(judge, stands=False)
    with side.judged(mode, clock):
        replies = [side.begin(request, partial(heard.hear, i)) for i, request in enumerate(requests[:n_begun])]
        while any(not some and not reply.done() for some, reply in zip(heard.some, replies, strict=False)):
            time.sleep(1e-3)
        began = heard.begin(seconds)
        for i in range(n_begun, n):
            time.sleep(max(0.0, began + came[i] - time.perf_counter()))
            replies.append(side.begin(requests[i], partial(heard.hear, i)))
        time.sleep(max(0.0, began + seconds - time.perf_counter()))
        side.end(replies)
    seen = [each for each in clock.seen if began <= each.at < began + seconds]
    at, running, rows = (np.array([getattr(each, name) for each in seen]) for name in ("at", "replies", "rows"))
    first, last, n_rows = heard.first - began, heard.last - began, rows // np.maximum(running, 1)
    return Trace(came, first, last, heard.n_tokens, at - began, running, n_rows, seconds)
