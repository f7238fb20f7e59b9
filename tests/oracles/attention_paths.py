"""The runs of the paths of a round, in NumPy: what native/paths.h is compared with."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ramet.ops.attention.lists import KEYS, RUN, SEGMENT
from ramet.round import Round
from ramet.tree import IntArray

_Long = npt.NDArray[np.int64]


@lru_cache(maxsize=2)
def paths_of(packed: Round, invariant: bool) -> Paths:
    """Those of a round's first plan serve the others."""
    return Paths(packed, invariant)


class Paths:
    """The runs of every segment's path.

    The table's first n_shared runs are the contexts', the others the segments' own. first and end [S]: the stretch of a
    segment's context (end: behind its last run); chain [S, L]: the segments from the root down to it, where there are
    fewer than L behind -1; steps [S]: in which column the root is; above [S]: blocks of the context's part of the path;
    own_place [S]: the place of the first own block. segments: rows of SEGMENT, flat.
    """

    def __init__(self, packed: Round, invariant: bool) -> None:
        origins, n_segments = packed["origins"], len(packed["origins"])
        begins = packed["anchors"] if invariant else origins
        shared, self.bounds = _context_runs(packed, invariant)
        self.n_shared = len(shared)
        self.runs = np.zeros((self.n_shared + n_segments, len(RUN)), np.int32)
        self.own = self.runs[self.n_shared :]
        self.own[:, 0], self.own[:, 1], self.own[:, 4] = begins, packed["lengths"], packed["starts"]
        self.chain, self.steps = _chains(packed["parents"])
        self.first = self.end = self.above = np.zeros(n_segments, np.int64)
        self._before = np.zeros(self.n_shared + 1, np.int64)
        if self.n_shared:
            self.runs[: self.n_shared] = shared
            self._follow(packed, origins - begins)
        self.n_own = -(-self.own[:, 1] // KEYS)
        self.own_place = self.above + self.before[:, -1]
        table = np.zeros((n_segments, len(SEGMENT)), np.int32)
        table[:, 0], table[:, 1], table[:, 2] = packed["blocks"], packed["anchors"], self.end
        table[:, 3 : 3 + self.chain.shape[1]] = self.chain + self.n_shared
        self.segments = table.ravel()

    def _follow(self, packed: Round, n_paged: IntArray) -> None:
        """Contexts in front of the paths; a continuing root has n_paged keys in pages."""
        contexts, ends = packed["contexts"], self.bounds[1:]
        if n_paged.any():  # such a root's run holds the context's last
            self.own[:, 1] += n_paged
            self.own[:, 2], self.own[:, 3] = n_paged, packed["context_offsets"][contexts]
            ends = ends.copy()
            ends[contexts[n_paged > 0]] -= 1
        held = contexts >= 0
        self.first, self.end = np.where(held, self.bounds[contexts], 0), np.where(held, ends[contexts], 0)
        np.cumsum(-(-self.runs[: self.n_shared, 1] // KEYS), out=self._before[1:])
        self.above = self._before[self.end] - self._before[self.first]

    @cached_property
    def root(self) -> _Long:
        """[S] the segment at the head of each one's chain."""
        found: _Long = self.chain[np.arange(len(self.chain)), self.steps]
        return found

    @cached_property
    def before(self) -> _Long:
        """[S, L] how many blocks of the chain come before each of its segments."""
        found = np.zeros(self.chain.shape, np.int64)
        above = self.chain[:, :-1]
        np.cumsum(np.where(above >= 0, self.n_own[above], 0), axis=1, out=found[:, 1:])
        return found

    def find(self, segments: _Long, places: _Long) -> tuple[_Long, _Long, _Long]:
        """Run, key in it, and step in the chain behind it, of the blocks at places of the segments' paths."""
        if not places.any():
            in_context = (self.above > 0)[segments]
            root, steps = (self.root + self.n_shared)[segments], (self.steps + 1)[segments]
            return np.where(in_context, self.first[segments], root), places, steps - in_context
        runs, keys, steps = np.zeros((3, len(places)), np.int64)
        in_context = places < self.above[segments]
        of, below = segments[in_context], ~in_context
        begun = self._before[self.first[of]] + places[in_context]
        runs[in_context] = found = np.searchsorted(self._before[1:], begun, side="right")
        keys[in_context], steps[in_context] = (begun - self._before[found]) * KEYS, self.steps[of]
        of = segments[below]
        wanted = places[below] - self.above[of]
        level = _last(self.before[of], wanted)
        runs[below], keys[below] = self.n_shared + self.chain[of, level], (wanted - self.before[of, level]) * KEYS
        steps[below] = level + 1
        return runs, keys, steps

    def places(self, segments: _Long, positions: _Long, *, up: bool) -> _Long:
        """The place of the block that holds a position; with `up`, of the first block that begins at or after it."""
        found = np.zeros(len(positions), np.int64)
        in_context = positions < self.own[self.root, 0][segments]
        of, wanted, below = segments[in_context], positions[in_context], ~in_context
        runs = np.searchsorted(self._fork_keys, (self.first[of] << 32) + wanted, side="right") - 1
        blocks = _block(wanted - self.runs[runs, 0], self.runs[runs, 1], up)
        found[in_context] = self._before[runs] - self._before[self.first[of]] + blocks
        of, wanted = segments[below], positions[below]
        level = _last(np.where(self.chain >= 0, self.own[self.chain, 0], 0)[of], wanted)
        own = self.own[self.chain[of, level]]
        found[below] = self.above[of] + self.before[of, level] + _block(wanted - own[:, 0], own[:, 1], up)
        return found

    @cached_property
    def _fork_keys(self) -> _Long:
        """[n_shared] by first run of the context and position."""
        return (np.repeat(self.bounds[:-1], np.diff(self.bounds)) << 32) + self.runs[: self.n_shared, 0]


def _last(begins: IntArray | _Long, wanted: _Long) -> _Long:
    """The last of each row's columns, ascending, that is not above `wanted`."""
    found: _Long = (begins <= wanted[:, None]).sum(1) - 1
    return found


def _block(keys: _Long, n_keys: IntArray, up: bool) -> _Long:
    return np.minimum(-(-keys // KEYS) if up else keys // KEYS, -(-n_keys // KEYS))


def _context_runs(packed: Round, invariant: bool) -> tuple[_Long, _Long]:
    """Rows of RUN, and [X+1] where each context's begin."""
    lengths, offsets = packed["context_lengths"], packed["context_offsets"]
    n = len(lengths)
    if not invariant or not n:
        runs = np.zeros((n, len(RUN)), np.int64)
        runs[:, 1] = runs[:, 2] = lengths
        runs[:, 3] = offsets[:n]
        return runs, np.arange(n + 1)
    forks, bounds = packed["context_forks"], packed["context_fork_offsets"].astype(np.int64)
    ends = np.append(forks[1:], 0)
    ends[bounds[1:] - 1] = lengths
    runs = np.zeros((len(forks), len(RUN)), np.int64)
    runs[:, 0] = forks
    runs[:, 1] = runs[:, 2] = ends - forks
    runs[:, 3] = np.repeat(offsets[:n], np.diff(bounds))
    return runs, bounds


def _chains(parents: IntArray) -> tuple[_Long, _Long]:
    """[S, L] the segments from the root down to each, the shorter ones behind -1; [S] where they begin."""
    levels, above = [np.arange(len(parents))], parents.astype(np.int64)
    while len(above) and above.max() >= 0:
        levels.append(above)
        above = np.where(above >= 0, parents[above], -1)
    chain = np.stack(levels[::-1], 1)
    return chain, (chain < 0).sum(1)
