"""Who is compared by the bench of reads: two engines on one model, and transformers on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import psutil
import torch

from ramet.bench.asked import Asked, Form
from ramet.bench.random_model import RandomModel
from ramet.bench.reads_found import ONE, PEER, TWO
from ramet.decide.decider import Decider
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.layers.storage import row_bytes
from ramet.tree import FloatArray

if TYPE_CHECKING:
    from ramet.bench.diffusion_peer import DiffusionPeer

_KEPT_SHARE = 10  # pages of an engine take this part of the free memory at most
Turn = Callable[[Asked], FloatArray]  # the logits of each slot's columns


@dataclass(slots=True)
class Sides:
    """engines: of one pass and of two steps. rng: of the ids that are asked."""

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
        settings = replace(settings, cache_bytes=_cache_bytes(model, settings, n_kept))
        with ExitStack() as stack:
            engines = {
                name: stack.enter_context(engine_on(model, replace(settings, single_pass_reads=name == ONE)))
                for name in (ONE, TWO)
            }
            yield cls(model, engines, _peer(model) if with_peer else None, np.random.default_rng(seed))

    @property
    def turns(self) -> dict[str, Turn]:
        """Each one's way to a read, by name."""
        found: dict[str, Turn] = {name: _turn(engine) for name, engine in self.engines.items()}
        peer = self.peer
        return found if peer is None else found | {PEER: lambda asked: peer([asked])}

    def draw(self, form: Form) -> Asked:
        return Asked.draw(form, self.rng, self.model.decoder.shape.vocab_size)


def _turn(engine: Engine) -> Turn:
    def read(asked: Asked) -> FloatArray:
        reads = engine.submit(asked.tree, n_keep=asked.form.n_prompt).result()
        return reads.logits.reshape(-1, len(asked.columns))

    return read


def engine_on(model: RandomModel, settings: EngineSettings) -> Engine:
    """One that is never asked a question in words, so that it needs no tokenizer."""
    nobody = cast(Decider, SimpleNamespace(settings=SimpleNamespace(method="reads of random ids")))
    return Engine(model.name, model.decoder, nobody, settings)


def _peer(model: RandomModel) -> DiffusionPeer:
    from ramet.bench.diffusion_peer import DiffusionPeer  # importing it takes seconds

    return DiffusionPeer(model)


def _cache_bytes(model: RandomModel, settings: EngineSettings, n_kept: int) -> int:
    assert settings.cache_bytes is not None
    wanted = n_kept * row_bytes(model.decoder.shape, model.decoder.dtype)
    return max(settings.cache_bytes, min(wanted, free_bytes(model.decoder.device) // _KEPT_SHARE))


def free_bytes(device: torch.device) -> int:
    """Of the device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
