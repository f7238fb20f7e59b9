"""Contestants of the bench of reads: two engines on one model, and transformers on the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from ramet.bench.core.canvases import CanvasForm, CanvasRead
from ramet.bench.core.random_model import RandomModel, free_bytes
from ramet.bench.reads.report import ONE, PEER, TWO
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.tree import FloatArray, Reads, Tree

if TYPE_CHECKING:
    from ramet.bench.peers.diffusion import DiffusionPeer

_KEPT_SHARE = 10  # pages of an engine take this part of the free memory at most
Turn = Callable[[CanvasRead], FloatArray]  # the logits of each slot's columns


@dataclass(slots=True)
class Sides:
    """engines: of one pass and of two steps. rng: of the ids that are drawn."""

    model: RandomModel
    engines: dict[str, Engine]
    peer: DiffusionPeer | None
    rng: np.random.Generator

    @classmethod
    @contextmanager
    def opened(
        cls, model: RandomModel, settings: EngineSettings, *, with_peer: bool, n_kept: int = 0, seed: int = 0
    ) -> Iterator[Sides]:
        """Settings are resolved ones. n_kept: tokens for which an engine has pages at least, where memory allows."""
        assert settings.cache_bytes is not None
        share = free_bytes(model.decoder.device) // _KEPT_SHARE
        settings = replace(settings, cache_bytes=max(settings.cache_bytes, min(model.bytes_of(n_kept), share)))
        with ExitStack() as stack:
            engines = {
                name: stack.enter_context(model.engine(replace(settings, single_pass_reads=name == ONE)))
                for name in (ONE, TWO)
            }
            yield cls(model, engines, _peer(model) if with_peer else None, np.random.default_rng(seed))

    @property
    def turns(self) -> dict[str, Turn]:
        """Each one's way to a read, by name."""
        found: dict[str, Turn] = {name: partial(_read, engine) for name, engine in self.engines.items()}
        peer = self.peer
        return found if peer is None else found | {PEER: lambda read: peer([read])}

    def draw(self, form: CanvasForm) -> CanvasRead:
        return CanvasRead.draw(form, self.rng, self.model.vocab_size)


def _read(engine: Engine, read: CanvasRead) -> FloatArray:
    reads = engine.submit(read.tree, n_keep=read.form.n_prompt).result()
    return reads.logits.reshape(-1, len(read.columns))


def _peer(model: RandomModel) -> DiffusionPeer:
    from ramet.bench.peers.diffusion import DiffusionPeer  # importing it takes seconds

    return DiffusionPeer(model)


def closed_loop(engine: Engine, trees: Sequence[Tree], n_clients: int) -> tuple[float, list[float]]:
    """Reads a second, and the milliseconds of each, of `n_clients` that submit one tree after the other until all are
    answered. The first root of a tree is kept, as a decision's state is."""
    answered: SimpleQueue[Future[Reads]] = SimpleQueue()
    ms: list[float] = []

    def done(started: float, future: Future[Reads]) -> None:
        ms.append((time.perf_counter() - started) * 1e3)
        answered.put(future)

    def submit(tree: Tree) -> None:
        started = time.perf_counter()
        engine.submit(tree, n_keep=int(tree.lengths[0])).add_done_callback(partial(done, started))

    began = time.perf_counter()
    for tree in trees[:n_clients]:
        submit(tree)
    for tree in trees[n_clients:]:
        answered.get().result()
        submit(tree)
    for _ in trees[:n_clients]:
        answered.get().result()
    return len(trees) / (time.perf_counter() - began), ms
