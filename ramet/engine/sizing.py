"""Sizing: the sizes of chunks, by how long rounds take."""

from __future__ import annotations

import logging
from pathlib import Path

from ramet.denoise.block_config import BlockConfig
from ramet.denoise.elastic import AUTO, Auto, ChunkTiers, Repeating, fixed_size
from ramet.denoise.latency import Drift, Latency
from ramet.engine.batch import Batch
from ramet.engine.cache import Cache
from ramet.engine.decoding import Decoding
from ramet.engine.latency import latency, setup_of
from ramet.engine.rehearsal import Rehearsal
from ramet.engine.runner import Runner
from ramet.engine.settings import EngineSettings

_LOGGER = logging.getLogger(__name__)
MAX_MEASURED = 256  # replies in a round whose time is measured beforehand


class Sizing:
    """Chooses the chunks of replies without a size of their own, of a model that fills in blocks of masks. A reply that
    is always alone takes whole blocks. `latency`: how long rounds take, None before that is measured. `is_due`: whether
    it is still to be measured."""

    def __init__(self, settings: EngineSettings, blocks: BlockConfig, decoding: Decoding) -> None:
        self.latency: Latency | None = None
        self.is_due = False
        self._drift: Drift | None = None
        self._settings, self._blocks, self._decoding = settings, blocks, decoding
        if settings.mode != "chunk":
            return
        size, tiers = settings.chunk_size, settings.chunk_tiers
        fixed_size(size, blocks.size, tiers)  # which all others have
        if tiers is not None:
            decoding.choice.sizes = ChunkTiers.parse(tiers, blocks.size, decoding.running.largest)
        elif size == AUTO:
            self.is_due = decoding.max_running > 1

    def measure(self, runner: Runner, cache: Cache) -> None:
        """By the engine's thread, between two rounds. Where it cannot be done, chunks stay as large as blocks."""
        settings, blocks = self._settings, self._blocks
        assert settings.max_round_tokens
        self.is_due = False
        where = None if settings.latency_cache is None else Path(settings.latency_cache)
        most = settings.max_round_tokens // 2
        try:
            with Rehearsal(runner, cache.pages, blocks.mask) as rehearsal:
                self.latency = latency(rehearsal, blocks.size, MAX_MEASURED, most, setup_of(runner.model), where)
        except Exception as error:  # whatever a pass raises: whoever waits for it is here already
            _LOGGER.warning("chunks are whole blocks, for it cannot be measured what smaller ones gain: %s", error)
            return
        self._drift = Drift(self.latency)
        self._decoding.choice.sizes = Repeating(Auto(self._drift.seconds, blocks.size), self._decoding.running.largest)

    def observe(self, batch: Batch, seconds: float, between: float) -> None:
        """Note how long a round with a step took, and the seconds from the end of the round before to its begin."""
        if self._drift is not None and batch.step is not None:
            self._drift.observe(batch.n_tokens, seconds, batch.step.units.n_context, between)

    def describe(self) -> str:
        """How sizes are chosen, for people."""
        settings = self._settings
        return "whole blocks (mode)" if settings.mode == "block" else settings.chunk_tiers or settings.chunk_size
