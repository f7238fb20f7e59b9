"""An engine on random weights whose steps `ramet bench elastic` times, in each of its modes, and the requests at random
that it serves."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch

from ramet.bench.core.named_shapes import BLOCK, block_config_of
from ramet.bench.core.random_model import RandomModel, free_bytes
from ramet.bench.elastic.commit_curves import Dataset
from ramet.bench.elastic.judge import Judge, JudgedReplies, SeenStep, StepClock
from ramet.bench.elastic.report import WHOLE
from ramet.bench.elastic.simulated import Floats, Ints
from ramet.bench.elastic.traces import Arrivals, Trace, most_requests
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.running import RunningReplies
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.engine.writer import OnPiece
from ramet.errors import RametError
from ramet.generation import GenerationRequest, Piece
from ramet.text.conversation import Conversation

MAX_TOKENS = 4096  # of a reply, that is none to end while it is timed
_LEAST_ROWS = 1 << 15  # of pages, for replies that come at random
_SHARE = 3  # pages take this part of the free memory at most
_FIRST_NEW = 1_000_000  # the number from which on requests have ids that nobody had


@dataclass(slots=True)
class Side:
    """An engine that writes replies to random ids. blocks: None for token by token. n_prompt: tokens of a prompt; some
    have a few more, so that blocks begin at different times. threshold: of requests; judges are sure or not at all, so
    that any will do. n_new: requests so far whose prompts nobody else had."""

    engine: Engine
    blocks: BlockConfig | None
    n_prompt: int
    vocab_size: int
    threshold: float = 0.5
    n_new: int = 0

    @classmethod
    @contextmanager
    def opened(
        cls, model: RandomModel, settings: EngineSettings, *, n_prompt: int, batch: int, causal: bool = False
    ) -> Iterator[Side]:
        """Settings are resolved ones; `batch` replies at once at most (or two, for one does not choose its chunks), and
        pages that hold them for a while, where memory allows for it. causal: the same layers, token by token."""
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
        """Forget what was seen of commits: each threshold has an estimate of its own."""
        self.threshold += 1e-3

    def run(
        self, mode: str, batch: int, judge: Judge | None, *, n_steps: int, limit_s: float, n_warm: int = 4
    ) -> list[SeenStep]:
        """Steps of `batch` replies, none of which ends or begins in between."""
        enough = threading.Event()
        clock = StepClock(judge, batch, n_steps, limit_s, enough.set, n_warm)
        with self.judged(mode, clock):
            replies = [self.begin(self.request(i, mode), lambda _: None) for i in range(batch)]
            for reply in replies:
                reply.add_done_callback(lambda _: enough.set())
            enough.wait()
            ended = any(reply.done() for reply in replies)
            self.end(replies)
        if ended:
            raise RametError("no figures: replies ended before enough of their steps were timed")
        return clock.seen

    @contextmanager
    def judged(self, mode: str, judge: Judge) -> Iterator[None]:
        """Let the judge say how sure draws are, and replies go on in that mode, as long as the `with` block lasts. No
        reply may be under way before it or behind."""
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
        """Begin a reply whose pieces the engine's own thread reports."""
        return self.engine.writer.start(request, on_piece)[0]

    def end(self, replies: Sequence[Future[int]]) -> None:
        """Cancel what is under way. Raises what a reply ended with."""
        for reply in replies:
            reply.cancel()
        while any(self.engine.stats()[f"replies_{name}"] for name in ("live", "waiting")):
            time.sleep(1e-3)  # the engine lets go of cancelled replies without saying so
        for reply in replies:
            if not reply.cancelled():
                reply.result()

    def requests(self, mode: str, prompts: Ints, n_tokens: Ints, n_begun: int) -> list[GenerationRequest]:
        """Of so many tokens. The first n_begun have prompts that are in pages; others have ids that nobody had."""
        room = self.engine.writer.max_length // 2
        found = []
        for i, (n_prompt, n) in enumerate(np.minimum((prompts, n_tokens), room).T.tolist()):
            is_new = i >= n_begun
            self.n_new += is_new
            number = _FIRST_NEW + self.n_new if is_new else i
            found.append(self.request(number, mode, n_prompt if is_new else None, n))
        return found

    def request(
        self, number: int, mode: str, n_prompt: int | None = None, n_tokens: int | None = None
    ) -> GenerationRequest:
        """The same number has the same prompt, which is in pages from the second time on."""
        n = (n_prompt or self.n_prompt) + (0 if n_prompt else number % BLOCK)
        n_ids = self.vocab_size if self.blocks is None else min(self.vocab_size, self.blocks.mask)
        room = self.engine.writer.max_length - n
        return GenerationRequest(
            prompt=tuple(np.random.default_rng(number).integers(0, n_ids, n).tolist()),
            max_tokens=n_tokens or min(MAX_TOKENS, room),
            ignore_eos=True,
            temperature=0.0,
            chunk_size=int(mode) if mode.isdecimal() else None,
            confidence_threshold=None if self.blocks is None else self.threshold,
        )


def _cache_bytes(model: RandomModel, settings: EngineSettings, n_rows: int) -> int:
    assert settings.cache_bytes is not None
    wanted = model.bytes_of(n_rows)
    return max(min(settings.cache_bytes, wanted), min(wanted, free_bytes(model.decoder.device) // _SHARE))


Heard = list[tuple[int, float, int]]  # a request, when it got tokens, and how many


def measured(
    side: Side,
    mode: str,
    dataset: Dataset,
    judge: Judge | None,
    *,
    rate: float,
    seconds: float,
    n_begun: int,
    seed: int,
) -> Trace:
    """What the engine does with requests of random ids that come at random for so many seconds, behind n_begun that are
    under way; then all are cancelled. The time that draws are judged for is in it."""
    arrivals = Arrivals.at_random(dataset, rate, most_requests(rate, seconds), np.random.default_rng(seed), n_begun)
    n = int((arrivals.came < seconds).sum())
    came = arrivals.came[:n]
    requests = side.requests(mode, arrivals.prompts[:n], arrivals.n_tokens[:n], n_begun)
    heard: Heard = []

    def hear(number: int, piece: Piece) -> None:
        """Called by the engine's thread. Tasks of others, which would wait for the interpreter beside it, have no
        part in it."""
        if piece.positions:
            heard.append((number, time.perf_counter(), len(piece.positions)))

    clock = StepClock(judge, stands=False)
    with side.judged(mode, clock):
        replies = [side.begin(request, partial(hear, i)) for i, request in enumerate(requests[:n_begun])]
        while len({number for number, *_ in heard} | {i for i, reply in enumerate(replies) if reply.done()}) < n_begun:
            time.sleep(1e-3)
        began = time.perf_counter()
        for i in range(n_begun, n):
            time.sleep(max(0.0, began + came[i] - time.perf_counter()))
            replies.append(side.begin(requests[i], partial(hear, i)))
        time.sleep(max(0.0, began + seconds - time.perf_counter()))
        side.end(replies)
    return traced(heard, clock.seen, came, began, seconds)


def traced(heard: Heard, seen: Sequence[SeenStep], came: Floats, began: float, seconds: float) -> Trace:
    """What was heard and seen from `began` on for so many seconds."""
    first, last = np.full((2, len(came)), np.nan)
    n_tokens = np.zeros(len(came), np.int64)
    for number, at, n in heard:
        if began <= at < began + seconds:
            first[number] = np.fmin(first[number], at - began)
            last[number] = at - began
            n_tokens[number] += n
    inside = [each for each in seen if began <= each.at < began + seconds]
    ended = np.array([each.at - began for each in inside])
    running = np.array([each.replies for each in inside], np.int64)
    rows = np.array([each.rows for each in inside], np.int64)
    return Trace(came, first, last, n_tokens, ended, running, rows // np.maximum(running, 1), seconds)
