"""The engine: one thread that admits, packs, runs, reads and commits; and the ways to ask it."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import numpy as np
import torch

from ramet.decide.budget import Budget
from ramet.decide.canvas import Canvas, thoughtless
from ramet.decide.decider import Decider, Plan
from ramet.decide.settings import settings_for
from ramet.decision import Decision, Timing, Usage
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.elastic import AUTO, Auto, Repeating, Tiers, fixed_size
from ramet.denoise.latency import Drift, Latency
from ramet.engine.cache import Cache
from ramet.engine.finite import NotFinite
from ramet.engine.latency import describe, latency, setup_of
from ramet.engine.load import (
    asked_of,
    check_kind,
    check_limits,
    denoising_of,
    load_model,
    masking_of,
    open_known,
    replies_for,
    runner_for,
    sampled_of,
    shape_of,
    with_blocks,
)
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.outbox import PieceOutbox
from ramet.engine.patience import Patience
from ramet.engine.rehearsal import Rehearsal
from ramet.engine.replies import Replies
from ramet.engine.reply import Reply
from ramet.engine.runner import InFlight, RoundResult
from ramet.engine.scheduler import Batch, Job, Scheduler
from ramet.engine.settings import EngineSettings
from ramet.engine.writer import CanvasWriter, ReplyWriter, Sampled, Writer
from ramet.errors import (
    Cancelled,
    CheckpointError,
    EngineFault,
    InvalidRequest,
    NotSupported,
    Overloaded,
    RametError,
    RequestTooLong,
)
from ramet.layers.decoder import Decoder
from ramet.request import DecisionRequest, Method, extent
from ramet.text.conversation import Conversation
from ramet.tree import WHOLE, Reads, Tree
from ramet.turns import LARGE, HasGone, Turns

_LOGGER = logging.getLogger(__name__)
PLANNERS = 2  # threads that plan for tasks; with more of them the engine's own waits long for the interpreter
COUNTS = (
    "requests", "rounds", "tokens", "cancelled", "failed_rounds", "canvas_reads", "two_step_reads", "read_fallbacks",
)  # fmt: skip
MAX_MEASURED = 256  # replies in a round whose time is measured beforehand
MAX_FAILURES = 3  # rounds of one job in a row that fail before the engine calls itself broken


class Engine:
    """A model that answers trees of tokens, and questions about a state.

    Made by `Engine.load`; a context manager, which closes it. Safe to use from any number of threads and tasks. It has
    its `name`, its resolved `settings` (EngineSettings), the model's `shape`, and `fault`: the EngineFault after which
    it takes no more requests, None while it works.
    """

    def __init__(
        self,
        name: str,
        model: Decoder,
        decider: Decider,
        settings: EngineSettings,
        denoising: CanvasConfig | None = None,
        conversation: Conversation | None = None,
        masking: BlockConfig | None = None,
        sampled: Sampled | None = None,
    ) -> None:
        """denoising: of a model with canvases; masking: of one that fills in blocks of masks. conversation: None where
        nothing is to be written. sampled: how ids are drawn unless a request says it."""
        assert settings.max_round_tokens
        assert settings.cache_bytes
        self.name, self.decider, self.settings = name, decider, settings
        self.shape, self.masking, self._sampled = model.shape, masking, sampled or Sampled()
        self.fault: EngineFault | None = None
        self._cache = Cache.allocate(model, settings)
        if settings.max_round_tokens < self._cache.grain:
            raise InvalidRequest(f"must be at least {self._cache.grain} for this model", field="max_round_tokens")
        self._runner = runner_for(model, self._cache.store, settings)
        self._max_length = settings.max_model_len or self.shape.max_positions
        self.replies: Replies | None = None
        self._mail = PieceOutbox()
        self._writer: Writer | None = None
        self.latency: Latency | None = None  # how long rounds take, where chunks are chosen by it
        self._drift: Drift | None = None
        self._unmeasured = False  # and sizes are to be chosen by it
        if denoising is not None:
            assert conversation is not None
            self._writer = CanvasWriter(denoising, conversation, self._max_length, self._follow)
        elif conversation is not None:
            self.replies = replies_for(self._cache, settings, masking)
            self._writer = ReplyWriter(
                conversation, self._longest_reply(), masking=masking, vocab_size=self.shape.vocab_size,
                stop_ids=masking.stop_ids if masking else frozenset(conversation.tokenizer.stop_ids),
                sampled=self._sampled,
                settings=settings, begin=self._begin_reply, mail=self._mail,
            )  # fmt: skip
            if masking is not None and settings.mode == "chunk":
                self._choose_sizes(masking)
        self._scheduler = Scheduler(
            self._cache.pages, settings.max_round_tokens, self._cache.grain, settings.max_round_requests, self.replies
        )
        self._inbox: SimpleQueue[Job | Reply | Future[None] | None] = SimpleQueue()
        self._counts = Counter(dict.fromkeys(COUNTS, 0))  # no key comes later
        self._round_sizes: Counter[int] = Counter()  # requests in a round -> rounds
        self._n_open, self._n_failures, self._closed = 0, 0, False
        self._patience = Patience()
        self._lost = False  # the device, with all that it held
        # Replies that ended in a round, the round, its seconds, and those between it and the one before.
        self._untold: deque[tuple[list[Reply], Batch, float, float]] = deque()
        self._has_gone = False  # a caller, whose work is still there
        self._since = 0.0  # when a round landed or failed, or work came in
        self._lock = threading.Lock()
        self._planners = Turns(PLANNERS, "ramet-plan")
        self._thread = threading.Thread(target=self._loop, name="ramet-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls, source: str | Path, *, name: str | None = None, method: Method | None = None, **settings: Any
    ) -> Engine:
        """Load a model: "smollm2", a checkpoint's directory, a GGUF file, or a hub id ("owner/name").

        `name` is what answers and /v1/models call it. `method` overrides the model's readout, "letters" or
        "options". The others are EngineSettings' fields, device="auto", dtype="auto" and so on.

        Raises CheckpointError where the model's files are missing, damaged, unknown or do not fit the settings, and
        InvalidRequest for a setting that does not exist or is out of range.
        """
        if not isinstance(source, str | Path):
            raise InvalidRequest(f"is a name or a path, not {source!r}", field="source")
        if name is not None and not name.strip():
            raise InvalidRequest("is empty: give the model a name, or leave it away", field="name")
        for unknown in settings.keys() - {each.name for each in fields(EngineSettings)}:
            raise InvalidRequest("is no setting of an engine; docs/settings.md lists them", field=unknown)
        resolved = EngineSettings(**settings).resolved()
        assert resolved.threads
        torch.set_num_threads(resolved.threads)
        checkpoint = open_known(source)
        asked, tokenizer = asked_of(checkpoint), checkpoint.tokenizer()
        frame = checkpoint.frame(asked)
        check_kind(checkpoint, resolved)
        canvas = denoising = None
        masking, shape = masking_of(checkpoint, resolved), shape_of(checkpoint)
        diffuses = shape.conditioning is not None
        if masking is not None or diffuses:
            if method == "options":
                raise CheckpointError(f'{checkpoint.name}: a diffusion model takes the method "letters" alone')
            method = "letters"
        if masking is not None:
            resolved = with_blocks(resolved, masking.size)
        if diffuses:
            denoising = denoising_of(checkpoint, resolved)
            frame = thoughtless(tokenizer, frame)
            canvas = Canvas.of(tokenizer, frame, denoising)
        check_limits(shape, denoising, masking, resolved)
        asking = settings_for(checkpoint.template(), method=method, chat=bool(frame.tail))
        if resolved.batch_invariant and not (tokenizer.splits_before_words or tokenizer.splits_before_breaks):
            raise CheckpointError(
                f"{checkpoint.name}: its tokens may span the cut between state and question, so the cut depends on all "
                "the questions of a request, and answers cannot be batch-invariant; load without batch_invariant"
            )
        sampled = sampled_of(checkpoint, masking)
        decider = Decider(tokenizer, frame, asking, canvas, masking)
        model = load_model(checkpoint, resolved)
        most = resolved.max_model_len or shape.max_positions
        conversation = Conversation(tokenizer, checkpoint.template(), asked, most)
        return cls(name or checkpoint.name, model, decider, resolved, denoising, conversation, masking, sampled)

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
        started = time.perf_counter()
        asked = _request(request, state, questions, options)
        self._check_open()
        plan = self._plan(asked)
        job = self._begin(plan, asked.cache_salt)
        return self._decision(plan, job, job.future.result(), started)

    async def decide_async(
        self,
        request: DecisionRequest | None = None,
        *,
        state: Any = None,
        questions: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Decision:
        """As `decide`, for tasks; cancelling the awaiting task cancels the work."""
        started = time.perf_counter()
        asked = _request(request, state, questions, options)
        self._check_open()
        size = extent(asked, LARGE)
        plan = await self._planners.run(lambda gone: self._plan(asked, gone), size=size, who=asked.cache_salt)
        job = self._begin(plan, asked.cache_salt)
        return self._decision(plan, job, await asyncio.wrap_future(job.future), started)

    def _begin(self, plan: Plan, salt: str) -> Job:
        """Hand a plan to the engine's thread."""
        tree = plan.tree if plan.course is None else plan.course.tree()
        return self._enqueue(tree, plan.trunk, plan.mark, salt, plan.course)

    def _plan(self, asked: DecisionRequest, has_gone: HasGone = lambda: False) -> Plan:
        budget = Budget(self.settings.max_request_tokens, lambda: self._closed or has_gone())
        with _ours("a plan"):
            return self.decider.plan(asked, budget)

    def submit(self, tree: Tree, *, n_keep: int = 0, mark: int | None = None, salt: str = "") -> Future[Reads]:
        """Run a tree of token ids; the future gives its reads or raises as `decide` does, and may be cancelled.

        `n_keep` leading rows of the tree's first root are kept, so that a later tree that starts alike, with the same
        `salt`, does not compute them again. A model with recurrent layers continues at checkpoints alone: kept every
        so many rows, and shortly before row `mark` (None: n_keep), from where on a later tree is likely to differ.

        Raises, before any work, InvalidRequest for ids out of range, RequestTooLong, Overloaded, Cancelled and
        EngineFault; the future raises the last two.
        """
        _check_kinds(tree=(tree, Tree), n_keep=(n_keep, int), mark=(n_keep if mark is None else mark, int),
                     salt=(salt, str))  # fmt: skip
        return self._enqueue(tree, n_keep, n_keep if mark is None else mark, salt).future

    async def submit_async(self, tree: Tree, *, n_keep: int = 0, mark: int | None = None, salt: str = "") -> Reads:
        """As `submit`, for tasks; cancelling the awaiting task cancels the work."""
        return await asyncio.wrap_future(self.submit(tree, n_keep=n_keep, mark=mark, salt=salt))

    def follow(self, course: MultiStepRead, *, salt: str = "") -> Future[int]:
        """Run trees one after the other, each when the one before it is complete; the future, which may be cancelled,
        gives how many tokens of the first were not computed again. Errors as of `submit`; a later tree that does not
        pass its checks ends the course with the error."""
        return self._follow(course, salt).future

    def _follow(self, course: MultiStepRead, salt: str) -> Job:
        tree = course.tree()
        return self._enqueue(tree, int(tree.lengths[0]), int(tree.lengths[0]), salt, course)

    def _begin_reply(self, reply: Reply) -> None:
        """Hand a reply to the engine's thread."""
        if not self.settings.prefix_caching:
            reply.salt = f"{id(reply)} {time.perf_counter_ns()}"
        with self._lock:
            self._check_open()
            self._patience.admitted()
            self._n_open += 1
            reply.future.add_done_callback(self._settled)
            self._inbox.put(reply)

    def _longest_reply(self) -> int:
        """Tokens that a prompt and its reply may have together: as many as the model takes, and the pages hold."""
        pages = self._cache.pages
        return min(self._max_length, (pages.n_pages - 1) * pages.page_size)

    def measure(self) -> None:
        """Find out how long rounds take, if the size of chunks is chosen by it. Done at the first reply unless asked
        for before; a matter of seconds where it was not measured before on this setup."""
        with self._lock:
            if self._closed or not self._unmeasured:
                return
            measured = Future[None]()
            self._inbox.put(measured)
        measured.result()

    def _choose_sizes(self, masking: BlockConfig) -> None:
        """Chunks of replies without a size of their own. One that is always alone takes whole blocks."""
        assert self.replies is not None
        told, tiers = self.settings.chunk_size, self.settings.chunk_tiers
        fixed_size(told, masking.size, tiers)  # which all others have
        if tiers is not None:
            self.replies.sizes = Tiers.parse(tiers, masking.size, self.replies.live.largest)
        elif told == AUTO:
            self._unmeasured = self.replies.max_live > 1

    def _measure(self) -> None:
        """By the engine's thread, between two rounds. Where it cannot be done, chunks stay as large as blocks."""
        assert self.replies is not None
        assert self.masking is not None
        assert self.settings.max_round_tokens
        self._unmeasured = False
        where = None if self.settings.latency_cache is None else Path(self.settings.latency_cache)
        try:
            with Rehearsal(self._runner, self._cache.pages, self.masking.mask) as rehearsal:
                self.latency = latency(
                    rehearsal, self.masking.size, MAX_MEASURED, self.settings.max_round_tokens // 2,
                    setup_of(self._runner.model), where,
                )  # fmt: skip
        except Exception as error:  # whatever a pass raises: whoever waits for it is here already
            _LOGGER.warning("chunks are whole blocks, for it cannot be measured what smaller ones gain: %s", error)
            return
        self._drift, self._since = Drift(self.latency), time.perf_counter()
        self.replies.sizes = Repeating(Auto(self._drift.seconds, self.masking.size), self.replies.live.largest)

    def _observe(self, batch: Batch, seconds: float, between: float) -> None:
        """How long a round with live replies took, and how much longer it was from the end of the one before."""
        step = batch.replies.step
        if self._drift is not None and step is not None:
            self._drift.observe(batch.n_tokens, seconds, step.units.n_context, between)

    @property
    def writer(self) -> Writer:
        """What writes text. Raises NotSupported where the engine was made to answer decisions alone."""
        if self._writer is None:
            raise NotSupported(f"{self.name} was made to answer decisions alone")
        return self._writer

    @property
    def model(self) -> Decoder:
        """The model itself; its pass may be run beside the engine's own."""
        return self._runner.model

    def stats(self) -> dict[str, float]:
        """Counters since the start (their names end in `_total`), and gauges: requests that are open, running replies,
        pages, bytes that are kept. docs/http-api.md lists them, as `ramet_engine_NAME`."""
        return {
            **{f"{name}_total": float(n) for name, n in self._counts.items()},
            "open_requests": float(self._n_open),
            **(self.replies.stats() if self.replies is not None else {}),
            **self._cache.stats(),
        }

    def histograms(self) -> dict[str, dict[int, int]]:
        """Sizes of rounds, of steps and of chunks since the start: how many times each came."""
        own = {"round_requests": dict(self._round_sizes)}
        return own | (self.replies.histograms() if self.replies is not None else {})

    def describe(self) -> dict[str, str]:
        """What was resolved, by name: model, device, dtype, limits, and why each op runs as it does."""
        s = self.settings
        return {
            "model": self.name,
            "fingerprint": self.model.fingerprint,
            "device": s.device,
            "dtype": s.dtype,
            "threads": str(s.threads),
            "method": self.decider.settings.method,
            "max_round_tokens": str(s.max_round_tokens),
            "max_request_tokens": str(s.max_request_tokens),
            "max_positions": str(self.shape.max_positions),
            "max_model_len": str(self._max_length),
            "batch_invariant": str(s.batch_invariant),
            "cache": self._cache.describe(),
            **(self.masking.describe() if self.masking else {}),
            **({"chunk_size": self._chunks()} if self.masking else {}),
            **({"draws": self._sampled.describe()} if self.replies is not None else {}),
            **({"latency": describe(self.latency)} if self.latency else {}),
            **{f"op {name}": why for name, why in self._runner.model.ops.why.items()},
        }

    def _chunks(self) -> str:
        s = self.settings
        return "whole blocks (mode)" if s.mode == "block" else s.chunk_tiers or s.chunk_size

    def close(self) -> None:
        """Cancel what is open and end the engine's thread; with a disk cache, write what is not on disk yet. Once more
        does nothing."""
        if not self._closed:
            with self._lock:
                self._closed = True
            self._inbox.put(None)
            self._thread.join()
            self._cache.close(spill=not self._lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, tree: Tree, n_keep: int, mark: int, salt: str, course: MultiStepRead | None = None) -> Job:
        """Check a tree before any work, and those that may follow it, and hand it to the engine's thread."""
        self._check(tree)
        if course is not None:
            self._check_size(tree, course.limits.n_tokens, course.limits.max_position)
        if not self.settings.prefix_caching:  # a course alone keeps its own
            salt, n_keep = f"{id(course)} {time.perf_counter_ns()}", n_keep if course else 0
        job = Job(tree, Future(), *self._kept(tree, n_keep, mark), salt, course, self._in_two_steps(tree))
        with self._lock:  # held to the end, so that nothing arrives once the engine has ended
            self._check_open()
            self._patience.admitted()
            self._n_open += 1
            job.future.add_done_callback(self._settled)
            self._inbox.put(job)
        return job

    def _kept(self, tree: Tree, n_keep: int, mark: int) -> tuple[int, tuple[int, ...]]:
        n_keep = min(n_keep, int(tree.lengths[0]))
        return self._cache.kept(n_keep, min(mark, n_keep))

    def _in_two_steps(self, tree: Tree) -> bool:
        """Whether canvases wait for their prompts."""
        return not self.settings.single_pass_reads and bool((tree.blocks == WHOLE).any())

    def _check_open(self) -> None:
        """Raise where no further request is taken: also called before a request is planned, which costs time."""
        if self._closed:
            raise Cancelled("the engine is closed")
        if self.fault is not None:
            raise self.fault
        if self._n_open >= self.settings.max_queue:
            message = f"{self._n_open} requests are waiting; at most {self.settings.max_queue} may"
            raise Overloaded(message, retry_after_s=self._patience.refused())

    def _settled(self, future: Future[Any]) -> None:
        with self._lock:
            self._n_open -= 1
            self._counts["cancelled"] += future.cancelled()
        if future.cancelled():
            self._has_gone = True

    def _check(self, tree: Tree) -> None:
        shape = self.shape
        for name, ids in (("tokens", tree.tokens), ("reads.columns", tree.columns)):
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= shape.vocab_size):
                wrong = int(ids[(ids < 0) | (ids >= shape.vocab_size)][0])
                raise InvalidRequest(f"ids run from 0 to {shape.vocab_size - 1}; {wrong} is none", field=name)
        self._check_size(tree, tree.n_tokens, tree.max_position)

    def _check_size(self, tree: Tree, n_tokens: int, max_position: int) -> None:
        """Of a tree, or of the largest that may follow it, which has blocks like its own."""
        scheduler, settings = self._scheduler, self.settings
        most = scheduler.max_round_tokens
        if max_position > self._max_length:
            rows = ", with what is read behind it," if (tree.blocks != 1).any() else ""
            raise RequestTooLong(
                f"the state and its longest question{rows} have {max_position} tokens; the model takes "
                f"{self._max_length} (max_model_len)"
            )
        if n_tokens > settings.max_request_tokens:
            raise RequestTooLong(
                f"{n_tokens} tokens in all, {settings.max_request_tokens} at most (max_request_tokens)"
            )
        is_cut = n_tokens > most or self._in_two_steps(tree)
        if is_cut and scheduler.n_pages_for(max_position) > scheduler.pages.n_pages:
            raise RequestTooLong(f"{max_position} tokens do not fit the pages; a larger cache_bytes helps")
        widest = max(most // 2, self._cache.grain)  # what a round gives a long request while others wait
        if n_tokens > most and int(np.minimum(tree.blocks, tree.lengths).max()) > widest:
            raise RequestTooLong(f"a block, whose rows run together, has more than {widest} (max_round_tokens)")

    def _loop(self) -> None:
        """Rounds, until closed: admit, pack, run, read, commit. While one runs the next is packed and sent, where the
        device allows for it."""
        flights: deque[InFlight] = deque()
        try:
            while not self._closed or flights:
                batch = self._next(idle=not flights)
                if batch:
                    self._launch(batch, flights)
                elif not flights and len(self._scheduler):
                    raise EngineFault("the scheduler found no work for the requests that wait")
                self._tell()
                if flights and (len(flights) == self._runner.depth or not batch):
                    self._land(flights.popleft())
                if self._lost:
                    _keep(*flights)
                if self.fault is not None:
                    flights.clear()
            self._fail_all(Cancelled("the engine was closed"))
        except Exception as error:  # a fault outside a pass: nobody may be left hanging
            self._break(EngineFault(f"the engine's loop failed: {type(error).__name__}: {error}"))

    def _next(self, *, idle: bool) -> Batch:
        """What is to run next, of all that has arrived; none once the engine is closed."""
        if self._closed:
            return Batch()
        idle = idle and len(self._scheduler) == 0
        if idle:
            self._tell()
        self._admit(wait=idle)
        if idle:
            self._since = time.perf_counter()
        if self._has_gone:
            self._has_gone = bool(self._scheduler.aloft)  # what rounds under way have goes when they have landed
            for job in self._scheduler.cancelled():
                job.future.set_running_or_notify_cancel()
        return self._scheduler.next()

    def _launch(self, batch: Batch, flights: deque[InFlight]) -> None:
        try:
            flights.append(self._runner.launch(batch))
        except Exception as error:  # whatever a pass raises must neither end the thread nor fail a neighbour
            self._recover(batch, error)

    def _land(self, flight: InFlight) -> None:
        try:
            landed = flight.wait()
        except Exception as error:  # a device reports late
            self._recover(flight.batch, error)
        else:
            now = time.perf_counter()
            took, self._since = now - self._since, now
            self._commit(flight.batch, landed, took)

    def _admit(self, *, wait: bool) -> None:
        """Take what has arrived; with `wait`, not before something has."""
        try:
            while True:
                job = self._inbox.get(block=wait)
                wait = False
                if self._unmeasured and isinstance(job, Reply | Future) and not self._closed:
                    self._measure()
                if isinstance(job, Future):
                    job.set_result(None)
                elif job is not None:  # None only wakes the thread, to close
                    self._take_in(job)
                    if job.future.cancelled():  # no `|=`: another may go between its reading and its writing
                        self._has_gone = True
        except Empty:
            return

    def _take_in(self, job: Job | Reply) -> None:
        """What cannot be taken in fails alone: nobody else knows of it yet."""
        try:
            self._scheduler.add(job)
        except Exception as error:
            _settle(job, EngineFault(f"a request cannot be taken in: {type(error).__name__}: {error}"))

    def _commit(self, batch: Batch, landed: RoundResult, took: float) -> None:
        for job in batch.jobs:
            job.started_at = job.started_at or time.perf_counter() - landed.seconds
            job.pass_s += landed.seconds
        done = self._scheduler.commit(batch, landed.reads)
        self._counts.update(rounds=1, tokens=batch.n_tokens)
        self._round_sizes[len(batch.jobs) + len(batch.replies.replies)] += 1
        self._n_failures = 0
        for job in done:
            self._count(job)
            if job.course is None:
                self._finish(job, job.reads)
            else:
                self._proceed(job, job.course)
        if self.replies is not None:
            ended = self.replies.commit(batch.replies, landed.drawn)
            self._untold.append((ended, batch, landed.seconds, took - landed.seconds))
            if self._runner.depth == 1:  # nothing runs while it is told
                self._tell()

    def _tell(self) -> None:
        """What the last round made known, to all that wait for it: where a device runs by itself, when it has its next
        round."""
        if self.replies is None:
            return
        self.replies.tell()
        self._mail.send()
        while self._untold:
            ended, batch, seconds, between = self._untold.popleft()
            for reply in ended:
                self._finish(reply, reply.fault or reply.n_cached or 0)
            self._observe(batch, seconds, between)

    def _finish(self, job: Job | Reply, outcome: Reads | int | EngineFault) -> None:
        self._counts.update(requests=1)
        _settle(job, outcome)

    def _count(self, job: Job) -> None:
        """A canvas that is read in one step of its own."""
        if job.has_canvas and (job.course is None or job.n_resumed is None):
            self._counts.update(canvas_reads=1, two_step_reads=job.is_split, read_fallbacks=self._fell_back(job))

    def _fell_back(self, job: Job) -> bool:
        return job.is_split and self.settings.single_pass_reads

    def _proceed(self, job: Job, course: MultiStepRead) -> None:
        """The next tree of a course; what is wrong with it is told to its caller alone."""
        if job.n_resumed is None:
            job.n_resumed = job.n_cached
        try:
            if course.take(job.reads):
                self._finish(job, job.n_resumed)
                return
            tree = course.tree()
            self._check(tree)
        except RametError as error:
            _settle(job, error)
        except Exception as error:
            _settle(job, _fault(job.tree.n_tokens, error))
        else:
            n_root = int(tree.lengths[0])
            job.proceed(tree, *self._kept(tree, n_root, n_root))
            self._scheduler.add(job)

    def _recover(self, batch: Batch, error: Exception) -> None:
        """After a failed round its jobs run again, each alone; one that fails alone gets the fault, behind all that was
        known of it before."""
        self._tell()
        self._since = time.perf_counter()
        jobs: list[Job | Reply] = [*batch.jobs, *batch.replies.replies]
        self._scheduler.drop(batch.jobs, batch)
        self._counts["failed_rounds"] += 1
        if isinstance(error, torch.AcceleratorError):  # the device's context is lost, with all that it held
            self._lost = True
            _keep(self._runner, self._cache, error, *jobs)
            fault = EngineFault(f"the device failed, and the engine must be started anew: {error}")
            fault.__cause__ = error
            self.fault = fault  # before anybody is told of it
            for job in batch.jobs:
                _settle(job, fault)
            self._break(fault)  # replies are among those that wait
            return
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
        if len(jobs) > 1:
            for job in batch.jobs:
                job.restart(alone=True)
                self._scheduler.add(job)
            return
        is_broken = isinstance(error, NotFinite) and not self._runner.is_sound()
        fault = _not_finite(self.name) if is_broken else _fault(batch.n_tokens, error)
        # Smaller requests may well fit, and others have other numbers.
        self._n_failures += not isinstance(error, torch.OutOfMemoryError | NotFinite)
        is_broken |= self._n_failures >= MAX_FAILURES
        if is_broken:
            self.fault = fault  # before anybody is told of it
        _settle(jobs[0], fault)
        if isinstance(jobs[0], Reply):
            assert self.replies is not None
            self.replies.drop([jobs[0]])
        if is_broken:
            self._break(fault)

    def _break(self, fault: EngineFault) -> None:
        """The engine has failed for good: nobody is taken in any more, and all who wait are told."""
        with self._lock:
            self.fault = fault
        self._fail_all(fault)

    def _fail_all(self, error: Exception) -> None:
        self._tell()
        self._admit(wait=False)
        jobs = self._scheduler.abandon()
        if self._lost:
            _keep(*jobs)  # what the steps of their courses left
        for job in jobs:
            _settle(job, error)

    def _decision(self, plan: Plan, job: Job, outcome: Any, started: float) -> Decision:
        """outcome: what `submit` or, of a plan with a course, `follow` gives."""
        now = time.perf_counter()
        reads, n_cached = (outcome, job.n_cached) if plan.course is None else (plan.course.reads, outcome)
        usage = Usage(input_tokens=plan.tree.n_tokens, output_tokens=plan.n_questions, x_cached_tokens=n_cached)
        if job.has_canvas:
            usage.x_engine_steps, usage.x_fell_back = job.n_rounds, self._fell_back(job)
        timing = Timing(
            plan_ms=(job.queued_at - started) * 1e3,
            queue_ms=(job.started_at - job.queued_at) * 1e3,
            pass_ms=job.pass_s * 1e3,
            total_ms=(now - started) * 1e3,
        )
        with _ours("an answer"):
            return Decision(
                model=self.name, answers=plan.answers(reads), usage=usage, joint=plan.joint, x_timing=timing
            )


def _fault(n_tokens: int, error: Exception) -> EngineFault:
    """What a request whose own round failed is told."""
    if isinstance(error, torch.OutOfMemoryError):
        what = f"a round of {n_tokens} tokens needs more of the device's memory than is free"
        fault = EngineFault(f"{what}: {error}; a smaller cache_bytes or max_round_tokens leaves more of it")
    elif isinstance(error, NotFinite):
        fault = EngineFault(f"{error}: the model's numbers overflow on this request")
    else:
        fault = EngineFault(f"a round failed: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def _not_finite(name: str) -> EngineFault:
    return EngineFault(
        f"logits are not finite, whatever is asked: the weights of {name} overflow or were damaged after they were "
        "loaded; load sound ones"
    )


@contextmanager
def _ours(what: str) -> Iterator[None]:
    """A fault of our own in what is done for one request comes as an EngineFault, and in the log whole."""
    try:
        yield
    except RametError:
        raise
    except Exception as error:
        _LOGGER.exception("%s cannot be made", what)
        raise EngineFault(f"{what} cannot be made: {type(error).__name__}: {error}") from error


def _keep(*things: object) -> None:
    """For ever: of a device that has failed nothing may be freed. torch ends the process where freeing fails, and
    whoever waits would get no answer."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


def _settle(job: Job | Reply, outcome: Reads | int | Exception) -> None:
    """Give a job its outcome; where its caller has cancelled, whoever waits for its future learns that."""
    future: Future[Any] = job.future
    try:
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        if future.cancelled():
            future.set_running_or_notify_cancel()


def _check_kinds(**given: tuple[object, type]) -> None:
    """Raise InvalidRequest for what would only fail in the engine's thread."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise InvalidRequest(f"is of type {kind.__name__}, not {type(value).__name__}", field=name)
        if isinstance(value, int) and value < 0:
            raise InvalidRequest(f"must be at least 0, not {value}", field=name)


def _request(
    request: DecisionRequest | None, state: Any, questions: Mapping[str, Any] | None, options: dict[str, Any]
) -> DecisionRequest:
    if request is not None:
        if state is not None or questions is not None or options:
            raise InvalidRequest("give a request or its fields, not both", field="request")
        if not isinstance(request, DecisionRequest):
            raise InvalidRequest(f"is a DecisionRequest, not {type(request).__name__}", field="request")
        return request
    fields = {"state": state, "questions": questions}
    for key, value in options.items():
        fields[f"x_{key}" if f"x_{key}" in DecisionRequest.model_fields else key] = value
    asked = DecisionRequest.parse(fields)
    for key in DecisionRequest.ignored(fields):
        known = ", ".join(name.removeprefix("x_") for name in DecisionRequest.model_fields if name != "seed")
        raise InvalidRequest(f"unknown keyword; known: {known}", field=key)
    return asked
