"""ChunkChoice: the largest chunk of each running reply in a step, and which of them it has room for."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from ramet.cache.tables import Tables
from ramet.denoise.commits import Commits
from ramet.denoise.elastic import ChunkSizes, Demand, Fixed
from ramet.denoise.reply_table import grown
from ramet.denoise.running import Emitted, RunningReplies
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import IntArray

_ESTIMATORS = 1024


class ChunkChoice:
    """`sizes` chooses for the replies that have no size of their own, by what chunks of each size gained so far.
    `block`: rows of a block, 1 of a model that writes token by token."""

    def __init__(self, sizes: ChunkSizes, block: int) -> None:
        self.sizes, self._block = sizes, block
        self._commits: dict[UnmaskPolicy, Commits] = {}  # least recently used first
        self._own = np.zeros(0, np.int32)  # [P] sizes of the replies' own; 0: none

    def add(self, place: int, own: int) -> None:
        """A reply begins at a place; `own`: the size of its chunks, 0 where `sizes` chooses it."""
        if place >= len(self._own):
            self._own = grown(self._own, place + 1)
        self._own[place] = own

    def most_rows(self, running: RunningReplies, places: IntArray) -> int:
        """Rows that a step of these replies has at most."""
        uncached, on_top, whole = running.uncached(places)
        own, most = self._own[places], self._block if len(places) > 1 else running.largest
        return int(self._rows(np.where(own > 0, own, most), uncached, on_top, whole).sum())

    def of(self, running: RunningReplies, tables: Tables, places: IntArray, room: int, n_other: int) -> IntArray:
        """The largest chunk of each of the first replies, of these, that `room` rows hold; n_other rows are in the
        round besides."""
        uncached, on_top, whole = running.uncached(places)
        sizes = np.maximum(self._own[places], running.least)
        free = self._own[places] == 0
        if free.any():
            others = n_other + int(self._rows(sizes, uncached, on_top, whole)[~free].sum())
            size = self._chosen(running, tables, places[free], uncached[free], others)
            if not isinstance(self.sizes, Fixed) and len(places) > 1:
                size = min(size, max(room - int(on_top.sum()), 0) // len(places))
            sizes[free] = min(max(running.least, size), running.largest)
        rows = self._rows(sizes, uncached, on_top, whole)
        n = max(int(rows[0] <= room), int(np.searchsorted(np.cumsum(rows), room, side="right")))
        return sizes[:n]

    def observe(self, taken: Emitted) -> None:
        """Learn from what a step made known."""
        for policy, passed in taken.passed().items():
            commits = self._estimator(policy)
            commits.observe(passed)
            commits.renew()

    def _rows(self, sizes: IntArray, uncached: IntArray, on_top: IntArray, whole: IntArray) -> IntArray:
        """[N] that steps of these sizes have: those above a block are of whole blocks."""
        found: IntArray = np.where(sizes > self._block, whole, np.minimum(uncached, sizes + on_top))
        return found

    def _chosen(
        self, running: RunningReplies, tables: Tables, places: IntArray, uncached: IntArray, n_other: int
    ) -> int:
        groups = running.group(places)
        demands = []
        for group in sorted(set(groups.tolist())):
            found, own = self._estimator(running.groups[group]), groups == group
            keys = int(tables.n_rows[places[own]].sum())
            demands.append(Demand(uncached[own], found.rates() if found.is_warm else None, keys))
        return self.sizes.choose(demands, n_other)

    def _estimator(self, policy: UnmaskPolicy) -> Commits:
        """Of those whose thresholds differ by less than a thousandth there is one; of the last used _ESTIMATORS."""
        alike = _alike(policy)
        found = self._commits.pop(alike) if alike in self._commits else Commits(max(2, self._block))
        self._commits[alike] = found
        if len(self._commits) > _ESTIMATORS:
            del self._commits[next(iter(self._commits))]
        return found


@lru_cache(_ESTIMATORS)
def _alike(policy: UnmaskPolicy) -> UnmaskPolicy:
    """The policy whose commits are taken for its own."""
    return replace(policy, threshold=round(policy.threshold, 3))
