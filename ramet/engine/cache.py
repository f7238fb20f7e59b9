"""What an engine keeps between rounds: its tensors, their bookkeeping, and the levels below the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ramet.cache.lower import LowerLevels
from ramet.cache.pages import Pages
from ramet.cache.store import Store
from ramet.cache.tiers import Tiers
from ramet.engine.identity import code, identity
from ramet.engine.job import STATES_A_JOB
from ramet.engine.settings import DTYPES, PAGE_SIZE, EngineSettings
from ramet.errors import InvalidRequest
from ramet.layers.decoder import Decoder
from ramet.layers.storage import allocate, row_bytes, state_bytes
from ramet.ops.gated_delta.reference import CHUNK


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """`grain` is where chunks and checkpoints may end, in rows from a root's start; `spacing` how far apart the
    checkpoints of a long state are."""

    store: Store
    pages: Pages
    tiers: Tiers | None
    grain: int
    spacing: int
    page_bytes: int
    state_bytes: int

    @classmethod
    def allocate(cls, model: Decoder, settings: EngineSettings) -> Cache:
        """Of a model with recurrent layers half of the bytes are for its states. Pages end where blocks of masks do,
        whose rows see each other: so the tokens of whole pages say what is in them. Raises InvalidRequest where rounds
        are too short for a piece, or memory is lacking."""
        assert settings.cache_bytes
        assert settings.max_round_tokens
        shape, dtype = model.shape, DTYPES[settings.dtype]
        size = math.lcm(PAGE_SIZE, settings.block_size or 1)
        page, state = size * row_bytes(shape, dtype), state_bytes(shape, dtype)
        grain = 1 if not state else math.lcm(PAGE_SIZE, CHUNK) if settings.batch_invariant else PAGE_SIZE
        if settings.max_round_tokens < grain:
            raise InvalidRequest(f"must be at least {grain} for this model", field="max_round_tokens")
        budget = settings.cache_bytes // 2 if state else settings.cache_bytes
        n_pages = max(1, budget // page) if page else STATES_A_JOB
        n_states = max(2 * STATES_A_JOB, budget // state) if state else 0
        try:
            store = allocate(shape, n_pages, size, n_states, dtype, model.device)
        except RuntimeError as error:  # torch's for memory, on the CPU
            what = f"{settings.cache_bytes} bytes of {model.device} cannot be had: {error}"
            raise InvalidRequest(what, field="cache_bytes") from error
        tiers = _tiers(settings, model, size)
        pages = Pages(n_pages, size, n_states, LowerLevels(store, tiers) if tiers else None)
        return cls(store, pages, tiers, grain, settings.checkpoint_spacing, page, state)

    def kept(self, n_keep: int, mark: int) -> tuple[int, tuple[int, ...]]:
        """How many of n_keep rows are kept, and the positions of their checkpoints: every `spacing` rows before
        `mark`, and the last possible before it."""
        if not self.pages.recurrent:
            return n_keep, ()
        wanted = [*range(self.spacing, mark, self.spacing), mark]
        marks = sorted({position // self.grain * self.grain for position in wanted if position >= self.grain})
        return max(marks, default=0), tuple(marks)

    def stats(self) -> dict[str, float]:
        """Places, what is kept in them, hits and misses in tokens, and bytes on each level."""
        pages = self.pages
        found = {
            "pages": pages.n_pages,
            "pages_free": pages.n_free,
            "pages_indexed": pages.n_indexed,
            "pages_evicted_total": pages.index.evicted,
            "states": pages.n_states,
            "states_free": pages.n_free_states,
            "checkpoints": pages.n_checkpoints,
            "checkpoints_evicted_total": pages.index.evicted_states,
            "prefix_hit_tokens_total": pages.hits,
            "prefix_missed_tokens_total": pages.misses,
            "cache_device_bytes": pages.n_indexed * self.page_bytes + pages.n_checkpoints * self.state_bytes,
        }
        below = self.tiers.stats() if self.tiers else {}
        return {name: float(value) for name, value in found.items()} | {f"cache_{k}": v for k, v in below.items()}

    def describe(self) -> str:
        states = f", {self.pages.n_states} recurrent states" if self.pages.recurrent else ""
        return f"{self.pages.n_pages} pages of {self.pages.page_size} tokens{states}"

    def close(self, *, spill: bool = True) -> None:
        """Leave what is kept to the levels below, so that the next engine finds what lies on disk; with `spill` off,
        what is there already."""
        if self.tiers is not None:
            while spill and self.pages.index.spill():
                self.tiers.flush()  # one by one: the queue to the disk drops what it cannot hold
            self.tiers.close()


def _tiers(settings: EngineSettings, model: Decoder, page_size: int) -> Tiers | None:
    """What lies in them is of the model as it computes here, by this code, of the pages' size, and of what gives other
    bits: the mode, and with it torch's release and the threads."""
    if not settings.memory_cache_bytes and settings.disk_cache is None:
        return None
    disk = None if settings.disk_cache is None else Path(settings.disk_cache)
    bits = f", invariant, torch {torch.__version__}, {settings.threads} threads" if settings.batch_invariant else ""
    of = f"{identity(model)}, {code()}, pages of {page_size}{bits}"
    return Tiers(settings.memory_cache_bytes, disk, settings.disk_cache_bytes, of)
