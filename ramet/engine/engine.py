"""Engine: a model, and the ways to ask it. What its thread does is in `loop.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Self

from ramet.decide.calibration import Calibration
from ramet.decide.decider import Decider
from ramet.decision import Decision
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.engine.assembly import decoding_for, scheduler_for, writer_for
from ramet.engine.cache import Cache
from ramet.engine.checks import TreeCheck, check_kinds
from ramet.engine.decisions import Decisions, request_of
from ramet.engine.decoding import Decoding
from ramet.engine.description import describe
from ramet.engine.inbox import Inbox
from ramet.engine.job import Job
from ramet.engine.load import load_engine, runner_for
from ramet.engine.loop import Loop
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.outbox import PieceOutbox
from ramet.engine.reply import Reply
from ramet.engine.reply_writer import SamplingDefaults
from ramet.engine.settings import EngineSettings
from ramet.engine.sizing import Sizing
from ramet.engine.writer import Writer
from ramet.errors import EngineFault, NotSupported
from ramet.generation import Generation, GenerationRequest, Piece
from ramet.layers.decoder import Decoder
from ramet.request import DecisionRequest, Method
from ramet.text.conversation import Conversation
from ramet.tree import Reads, Tree


class Engine:
    """A model that answers trees of tokens and questions about a state, and writes text.

    Made by `Engine.load`; a context manager, which closes it. Safe to use from any number of threads and tasks. It has
    its `name`, its resolved `settings` (EngineSettings) and the model's `shape`.
    """

    def __init__(
        self,
        name: str,
        model: Decoder,
        decider: Decider,
        settings: EngineSettings,
        canvases: CanvasConfig | None = None,
        conversation: Conversation | None = None,
        blocks: BlockConfig | None = None,
        sampling: SamplingDefaults | None = None,
    ) -> None:
        """canvases: of a model that writes in canvases of noise; blocks: of one that fills in blocks of masks.
        conversation: None where nothing is to be written. sampling: how ids are drawn unless a request says it."""
        self.name, self.settings, self.shape = name, settings, model.shape
        self.blocks, self.sampling = blocks, sampling or SamplingDefaults()
        self.cache = cache = Cache.allocate(model, settings)
        self.runner = runner_for(model, cache.store, settings)
        self.max_length = settings.max_model_len or model.shape.max_positions
        self.decoding: Decoding | None = None  # the replies that are being written, but on canvases
        if conversation is not None and canvases is None:
            self.decoding = decoding_for(cache, settings, blocks, self.runner.host)
        self.sizing = Sizing(settings, blocks, self.decoding) if blocks and self.decoding is not None else None
        self._inbox, outbox = Inbox(settings.max_queue), PieceOutbox()
        scheduler = scheduler_for(cache, settings, self.decoding)
        n_ids = model.shape.vocab_size
        self._check = TreeCheck(scheduler, settings, vocab_size=n_ids, max_length=self.max_length, grain=cache.grain)
        self._decisions = Decisions(name, decider, settings, self._inbox, self._enqueue)
        self._writer: Writer | None = None
        if conversation is not None:
            self._writer = writer_for(
                conversation, canvases, blocks, max_length=self.max_length, cache=cache, settings=settings,
                sampling=self.sampling, vocab_size=n_ids, follow=self._follow, begin=self._begin_reply, outbox=outbox,
            )  # fmt: skip
        self._loop = Loop(name, self._inbox, scheduler, self.runner, cache, self._check, outbox, self.sizing)
        self._loop.start()

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        name: str | None = None,
        method: Method | None = None,
        calibration: str | Path | Literal[False] | None = None,
        **settings: Any,
    ) -> Engine:
        """Load a model: "smollm2", a checkpoint's directory, a GGUF file, or a hub id ("owner/name").

        `name` is what answers and /v1/models call it. `method` overrides the model's readout, "letters" or
        "options". `calibration` is the file of one that was fitted for this model, in place of the `calibration.json`
        in the checkpoint's directory; False takes none. The others are EngineSettings' fields, device="auto",
        dtype="auto" and so on.

        Raises CheckpointError where the model's files are missing, damaged, unknown or do not fit the settings, and
        InvalidRequest for a setting that does not exist or is out of range, and for a calibration of another model.
        """
        return cls(*load_engine(source, name, method, calibration, settings))

    def decide(
        self,
        request: DecisionRequest | None = None,
        *,
        state: Any = None,
        questions: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Decision:
        """Answer typed questions about a state: a probability for every option. Give a DecisionRequest, or its fields
        as keywords, of which `x_` may be left off. Waits for the answer.

        Raises InvalidRequest for what is wrong with the request, and RequestTooLong for more tokens than fit, both
        before any work; Overloaded where max_queue requests wait; Cancelled where the engine is closed; EngineFault
        where its round failed.
        """
        return self._decisions.decide(request_of(request, state, questions, options))

    async def decide_async(
        self,
        request: DecisionRequest | None = None,
        *,
        state: Any = None,
        questions: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Decision:
        """As `decide`, for tasks; cancelling the awaiting task cancels the work."""
        return await self._decisions.decide_async(request_of(request, state, questions, options))

    def submit(self, tree: Tree, *, n_keep: int = 0, mark: int | None = None, salt: str = "") -> Future[Reads]:
        """Run a tree of token ids; the future gives its reads or raises as `decide` does, and may be cancelled.

        `n_keep` leading rows of the tree's first root are kept, so that a later tree that starts alike, with the same
        `salt`, does not compute them again. A model with recurrent layers continues at checkpoints alone: kept every
        so many rows, and shortly before row `mark` (None: n_keep), from where on a later tree is likely to differ.

        Raises, before any work, InvalidRequest for ids out of range, RequestTooLong, Overloaded, Cancelled and
        EngineFault; the future raises the last two.
        """
        mark = n_keep if mark is None else mark
        check_kinds(tree=(tree, Tree), n_keep=(n_keep, int), mark=(mark, int), salt=(salt, str))
        return self._enqueue(tree, n_keep, mark, salt).future

    async def submit_async(self, tree: Tree, *, n_keep: int = 0, mark: int | None = None, salt: str = "") -> Reads:
        """As `submit`, for tasks; cancelling the awaiting task cancels the work."""
        return await asyncio.wrap_future(self.submit(tree, n_keep=n_keep, mark=mark, salt=salt))

    def follow(self, read: MultiStepRead, *, salt: str = "") -> Future[int]:
        """Run trees one after the other, each when the one before it is complete; the future, which may be cancelled,
        gives how many tokens of the first were not computed again. Errors as of `submit`; a later tree that does not
        pass its checks ends the read with the error."""
        return self._follow(read, salt).future

    def generate(self, request: GenerationRequest) -> Generation:
        """Write a whole reply to a prompt of token ids, and wait for it; `engine.writer.conversation` makes prompts of
        messages.

        Raises NotSupported where the engine was made to answer decisions alone; before any work InvalidRequest for what
        is out of range or is not of this kind of model, RequestTooLong where the prompt and its reply do not fit,
        Overloaded; Cancelled and EngineFault as `decide` does.
        """
        return self.writer.generate(request)

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Each piece of a reply as soon as it is known; the last one has a `finish`. Raises as `generate` does, before
        the first piece what can be known before any work. Closing the iterator cancels the work."""
        return self.writer.stream(request)

    def measure(self) -> None:
        """Measure how long rounds take, if the size of chunks depends on it. Without this call the first reply does so.
        Takes seconds where it was not measured before on this setup."""
        if self.sizing is not None and self.sizing.is_due:
            self._inbox.call(self._loop.measure)

    @property
    def writer(self) -> Writer:
        """What writes text. Raises NotSupported where the engine was made to answer decisions alone."""
        if self._writer is None:
            raise NotSupported(f"{self.name} was made to answer decisions alone")
        return self._writer

    @property
    def model(self) -> Decoder:
        """The model itself; its pass may be run beside the engine's own."""
        return self.runner.model

    @property
    def decider(self) -> Decider:
        """What makes trees of questions, and answers of what was read."""
        return self._decisions.decider

    @property
    def calibration(self) -> Calibration | None:
        """What labelled rows say of the probabilities, where there is such a file; answers hold to it."""
        return self.decider.settings.calibration

    @property
    def fault(self) -> EngineFault | None:
        """The fault after which the engine takes no more requests; None while it works."""
        return self._inbox.fault

    def stats(self) -> dict[str, float]:
        """Counters since the start (their names end in `_total`), and gauges: requests that are open, running replies,
        pages, bytes that are kept. docs/http-api.md lists them, as `ramet_engine_NAME`."""
        return {
            **{f"{name}_total": float(n) for name, n in self._loop.counts.items()},
            "cancelled_total": float(self._inbox.n_cancelled),
            "open_requests": float(self._inbox.n_open),
            **self._loop.scheduler.stats(),
            **self.cache.stats(),
        }

    def histograms(self) -> dict[str, dict[int, int]]:
        """Sizes of rounds, of steps and of chunks since the start: how many times each came."""
        own = {"round_requests": dict(self._loop.round_sizes)}
        return own | (self.decoding.histograms() if self.decoding is not None else {})

    def describe(self) -> dict[str, str]:
        """What was resolved, by name: model, device, dtype, limits, and why each op runs as it does."""
        return describe(self)

    def close(self) -> None:
        """Cancel what is open and end the engine's thread; with a disk cache, write what is not on disk yet. Once more
        does nothing."""
        if not self._inbox.is_closed:
            self._inbox.close()
            self._loop.join()
            self.cache.close(spill=not self._loop.is_lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, tree: Tree, n_keep: int, mark: int, salt: str, read: MultiStepRead | None = None) -> Job:
        """Check a tree before any work, and those that may follow it, and hand it to the engine's thread."""
        self._check(tree, None if read is None else read.limits)
        if not self.settings.prefix_caching:  # a read of several steps alone keeps its own
            salt, n_keep = f"{id(read)} {time.perf_counter_ns()}", n_keep if read else 0
        n_keep = min(n_keep, int(tree.lengths[0]))
        kept = self.cache.kept(n_keep, min(mark, n_keep))
        job = Job(tree, Future(), *kept, salt, read, two_steps=self._check.in_two_steps(tree))
        self._inbox.put(job)
        return job

    def _follow(self, read: MultiStepRead, salt: str) -> Job:
        tree = read.tree()
        return self._enqueue(tree, int(tree.lengths[0]), int(tree.lengths[0]), salt, read)

    def _begin_reply(self, reply: Reply) -> None:
        """Hand a reply to the engine's thread."""
        if not self.settings.prefix_caching:
            reply.salt = f"{id(reply)} {time.perf_counter_ns()}"
        self._inbox.put(Job.of(reply))
