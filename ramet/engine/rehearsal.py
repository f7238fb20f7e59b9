"""Rehearsal: rounds of made-up replies, which measure how long rounds take."""

from __future__ import annotations

import time
from typing import Self

import numpy as np

from ramet.cache.pages import Pages, Path
from ramet.denoise.running import Chunks
from ramet.engine.batch import Batch, DecodingStep
from ramet.engine.laying import laid_out
from ramet.engine.runner import Runner
from ramet.tree import IntArray, Sampling

_CONTEXT = 512  # rows in pages that each reply sees
_MOST_PAGES = 4096
_N_IDS = 4099  # that differ, before they come again


class Rehearsal:
    """Runs rounds on free pages, which it gives back at the end. Used by one thread, with no round under way."""

    def __init__(self, runner: Runner, pages: Pages, mask: int, n_context: int = _CONTEXT) -> None:
        self._runner, self._pages, self._mask = runner, pages, mask
        self._n_context = min(n_context, runner.model.shape.max_positions // 2)
        self._path = Path()
        if not pages.append(self._path, max(1, min(pages.n_free, _MOST_PAGES))):
            self._n_context = 0
        self._held = np.array(self._path.pages, np.int32)
        self._ids = np.random.default_rng(0).integers(0, runner.model.shape.vocab_size, _N_IDS).astype(np.int32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pages.release(self._path)

    def __call__(self, n_replies: int, n_rows: int) -> float:
        """Run a round of so many replies, with so many rows each. Returns the seconds until its results are on the
        host. Half of the rows are read. Their ids differ, as those of replies do: equal rows would all go to the same
        experts."""
        batch, n_kept, size = Batch(), n_rows // 2 if len(self._held) else 0, self._pages.page_size
        chunks = _chunks(n_replies, n_rows, n_kept, self._n_context, self._ids)
        n_pages = -(-self._n_context // size)
        kept = _around(n_replies * n_kept, max(1, len(self._held) * size))
        units = laid_out(
            chunks, _full(n_replies, self._n_context), _full(n_replies, n_pages),
            self._held[_around(n_replies * n_pages, max(1, len(self._held)))],
            self._held[kept // size] * size + kept % size,
        )  # fmt: skip
        batch.seal(DecodingStep([], chunks, units, self._mask))
        began = time.perf_counter()
        self._runner.launch(batch).seconds()  # its numbers are of what pages happen to hold, and may be none
        return time.perf_counter() - began


def _chunks(n: int, n_rows: int, n_kept: int, n_context: int, ids: IntArray) -> Chunks:
    rows, n_reads = np.arange(n * n_rows, dtype=np.int32), n_rows - n_kept
    return Chunks(
        places=np.arange(n, dtype=np.int32), n_rows=_full(n, n_rows), n_kept=_full(n, n_kept), n_segments=_full(n, 1),
        n_reads=_full(n, n_reads), lengths=_full(n, n_rows), tokens=np.resize(ids, n * n_rows),
        positions=n_context + rows % n_rows, reads=rows[rows % n_rows >= n_kept],
        sampling=Sampling(
            temperatures=np.zeros(n * n_reads, np.float32), uniforms=np.zeros(n * n_reads, np.float32),
            top_p=np.ones(n * n_reads, np.float32), top_k=np.zeros(n * n_reads, np.int32),
        ),
    )  # fmt: skip


def _full(n: int, value: int) -> IntArray:
    return np.full(n, value, np.int32)


def _around(n: int, end: int) -> IntArray:
    """0 1 .. end-1 0 1 .., n of them."""
    return (np.arange(n) % end).astype(np.int32)
