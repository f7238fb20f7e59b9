"""Contestants of the bench of reads: two engines on one model, and transformers on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ramet.bench.core.canvases import CanvasForm, CanvasRead
from ramet.bench.core.random_model import RandomModel, free_bytes
from ramet.bench.reads.report import ONE, PEER, TWO
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.tree import FloatArray

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

    def n_rounds(self, name: str) -> int:
        """Of the engine of that name so far; a peer has none."""
        return int(self.engines[name].stats()["rounds_total"]) if name in self.engines else 0

    def draw(self, form: CanvasForm) -> CanvasRead:
        return CanvasRead.draw(form, self.rng, self.model.vocab_size)


def _read(engine: Engine, read: CanvasRead) -> FloatArray:
    reads = engine.submit(read.tree, n_keep=read.form.n_prompt).result()
    return reads.logits.reshape(-1, len(read.columns))


def _peer(model: RandomModel) -> DiffusionPeer:
    from ramet.bench.peers.diffusion import DiffusionPeer  # importing it takes seconds

    return DiffusionPeer(model)
