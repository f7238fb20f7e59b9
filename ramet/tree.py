"""Segment, Read and Tree: one request's part of a pass, in token ids.

A tree's segments are laid out depth first, so that the strict descendants of a segment are one
contiguous run of rows right behind it. A row sees its ancestors whole, and of its own segment what
`block` allows: 1 the rows up to itself (causal), B the rows whose ``position // B`` is not greater
than its own, WHOLE every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from ramet.errors import InvalidRequest

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

WHOLE = 1 << 30  # a block wider than any position: every row of the segment sees every other
MAX_ANCESTORS = 4
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class Read:
    """A request for logits: one row of a segment, some columns (ids) of the vocabulary.

    `row` counts from the segment's start, or from its end when negative. With `normalize` the read also returns the
    logsumexp over the whole vocabulary, which makes log-probabilities of logits.
    """

    columns: Sequence[int] | IntArray
    row: int = -1
    normalize: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step of denoising: it draws a token for each of some rows of a segment.

    rows [N] of the segment, ascending. A row draws the first id whose cumulative probability, in the order of ids,
    exceeds its number of `uniforms` [N], which are in [0, 1); probabilities are softmax(logits / temperature). Each row
    reports its `n_best` likeliest ids. `soft` is the `Stepped.soft` of the step before, None at a first step; the
    `pinned` rows take nothing of it. `leaves_soft` says whether a step follows. Draws, probabilities, entropies and the
    likeliest ids are over the `columns` [K], ascending; None: over all ids.
    """

    rows: IntArray
    uniforms: FloatArray
    temperature: float = 1.0
    n_best: int = 1
    soft: object | None = None
    pinned: Sequence[int] | IntArray = ()
    leaves_soft: bool = False
    columns: IntArray | None = None

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.uniforms) or not len(self.rows):
            raise InvalidRequest("a step needs rows, and a number for each", field="step.uniforms")
        if self.temperature <= 0 or self.n_best < 1:
            raise InvalidRequest("temperature and n_best are above 0", field="step")
        if self.columns is not None and len(self.columns) < self.n_best:
            raise InvalidRequest("n_best are among the columns", field="step.columns")


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """How tokens are drawn for N rows, on the host: temperatures (0: the likeliest id), uniforms in [0, 1), top_p (1:
    all) [N] float32; top_k [N] int32 (0: all)."""

    temperatures: FloatArray
    uniforms: FloatArray
    top_p: FloatArray
    top_k: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """The results of a Step for its N rows: the ids drawn [N]; the likeliest ids [N, n_best], descending, of equal ones
    the lower first, with their log-probabilities in nats at temperature 1; the entropy [N] of the distribution, in
    nats. `soft` stays on the device, for the canvas' next Step."""

    tokens: IntArray
    best: IntArray
    logprobs: FloatArray
    entropy: FloatArray
    soft: object | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of token ids below `parent` (the index of an earlier segment, -1 for a root). `block` says which rows of
    its own segment a row sees: 1 those up to itself, B those whose position // B is not greater than its own, WHOLE
    all. `reads` request logits of its rows, `step` is a step of denoising."""

    tokens: Sequence[int] | IntArray
    parent: int = -1
    block: int = 1
    reads: Sequence[Read] = field(default_factory=tuple)
    step: Step | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Segments of one request as flat arrays, depth first, parents before their children.

    tokens [T] int32; lengths, parents, blocks [S] int32; read_segments, read_rows [R] int32,
    normalize [R] bool; columns [C] int32 with offsets [R+1]. steps: the segments that have a step, ascending; each of
    their rows has a read, which may be of no columns. Derived: starts [S] (row in the stream), origins [S] (position of
    the first row), depths [S], behind [S] (the first segment behind a segment's descendants). Raises InvalidRequest
    when an invariant does not hold.
    """

    tokens: IntArray
    lengths: IntArray
    parents: IntArray
    blocks: IntArray
    read_segments: IntArray
    read_rows: IntArray
    normalize: BoolArray
    columns: IntArray
    offsets: IntArray
    steps: tuple[tuple[int, Step], ...] = ()
    starts: IntArray = field(init=False)
    origins: IntArray = field(init=False)
    depths: IntArray = field(init=False)
    behind: IntArray = field(init=False)

    def __post_init__(self) -> None:
        lengths = self.lengths.tolist()
        if not lengths:
            raise InvalidRequest("a tree needs at least one segment", field="segments")
        if min(lengths) < 1:
            raise InvalidRequest("a segment needs at least one token", field="segments")
        if min(self.blocks.tolist()) < 1:
            raise InvalidRequest("block is 1, a block size, or WHOLE", field="segments.block")
        starts = list(accumulate(lengths, initial=0))
        if starts.pop() != len(self.tokens):
            raise InvalidRequest("the lengths of the segments do not add up to the tokens", field="tokens")
        derived = np.array((starts, *_walk(lengths, self.parents.tolist())), np.int32)
        for name, value in zip(("starts", "origins", "depths", "behind"), derived, strict=True):
            object.__setattr__(self, name, value)
        if len(self.read_rows) and (
            int(self.read_rows.min()) < 0 or bool((self.read_rows >= self.lengths[self.read_segments]).any())
        ):
            raise InvalidRequest("a read's row lies outside its segment", field="reads.row")
        stepped = [np.int64(segment) << 32 | step.rows for segment, step in self.steps]
        read = self.read_segments.astype(np.int64) << 32 | self.read_rows
        if stepped and not np.isin(np.concatenate(stepped), read).all():
            raise InvalidRequest("a row of a step has no read", field="step.rows")

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Tree:
        """Build a tree of segments in any order in which parents come first; results keep the order of the reads.
        Raises InvalidRequest where a segment is empty, lies too deep, or has a read outside its rows."""
        order = _depth_first([s.parent for s in segments])
        place = {old: new for new, old in enumerate(order)}
        chosen = [segments[i] for i in order]
        steps = tuple(sorted((place[i], s.step) for i, s in enumerate(segments) if s.step is not None))
        reads = [(place[i], r) for i, s in enumerate(segments) for r in s.reads]
        lengths = [len(s.tokens) for s in chosen]
        parents = [place[s.parent] if s.parent >= 0 else -1 for s in chosen]
        read_rows = [r.row if r.row >= 0 else lengths[s] + r.row for s, r in reads]
        widths = [len(r.columns) for _, r in reads] + [0] * sum(len(step.rows) for _, step in steps)
        of_segments = np.array((lengths, parents, [s.block for s in chosen]), np.int32)
        of_reads = np.array(([s for s, _ in reads], read_rows, [r.normalize for _, r in reads]), np.int32)
        of_reads = np.concatenate([of_reads, *(_read_by(*each) for each in steps)], 1)
        return cls(
            tokens=_joined([s.tokens for s in chosen]),
            lengths=of_segments[0],
            parents=of_segments[1],
            blocks=of_segments[2],
            read_segments=of_reads[0],
            read_rows=of_reads[1],
            normalize=of_reads[2].astype(np.bool_),
            columns=_joined([r.columns for _, r in reads]),
            offsets=np.array(list(accumulate(widths, initial=0)), np.int32),
            steps=steps,
        )

    @property
    def n_tokens(self) -> int:
        """T, of all segments."""
        return len(self.tokens)

    @property
    def max_position(self) -> int:
        """One more than the highest position of any row."""
        return int((self.origins + self.lengths).max())


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of trees that follow one another: their number, the most rows of one of them, and one more than the
    highest position of any row."""

    n_trees: int
    n_tokens: int
    max_position: int


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """The results of a tree's reads, in the order of the reads.

    logits [C] float32, cut by offsets [R+1]; logsumexp [R] float32 (NaN without `normalize`); `stepped`, the results of
    its steps.
    """

    logits: FloatArray
    logsumexp: FloatArray
    offsets: IntArray
    stepped: tuple[Stepped, ...] = ()

    def logprobs(self, read: int) -> FloatArray:
        """Log-probabilities [columns] over the whole vocabulary, in nats, of the read with this number and
        `normalize`."""
        logprobs: FloatArray = self.columns(read) - self.logsumexp[read]
        return logprobs

    def part(self, first: int, last: int) -> Reads:
        """The reads numbered first .. last - 1, of a tree without steps."""
        own = self.offsets[first : last + 1]
        return Reads(self.logits[own[0] : own[-1]], self.logsumexp[first:last], own - own[0])

    def columns(self, read: int) -> FloatArray:
        """Raw logits [columns] of the read with this number, from 0."""
        return self.logits[self.offsets[read] : self.offsets[read + 1]]


def _read_by(segment: int, step: Step) -> IntArray:
    """[3, N] segments, rows and normalize of reads without columns, by which the step's rows get hidden states."""
    found = np.zeros((3, len(step.rows)), np.int32)
    found[0] = segment
    found[1] = step.rows
    return found


def _walk(lengths: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Origins, depths and `behind` [S]; raises where the order is not depth first."""
    n = len(lengths)
    origins, depths, behind = [0] * n, [0] * n, [n] * n
    path: list[int] = []
    for s, p in enumerate(parents):
        while path and path[-1] != p:
            behind[path.pop()] = s
        if p >= 0:
            if not path:
                raise InvalidRequest(f"segment {s} does not follow its parent {p} depth first", field="segments.parent")
            if len(path) > MAX_ANCESTORS:
                raise InvalidRequest(f"segment {s} has more than {MAX_ANCESTORS} ancestors", field="segments")
            origins[s] = origins[p] + lengths[p]
            depths[s] = len(path)
        path.append(s)
    return origins, depths, behind


def _joined(ids: Sequence[Sequence[int] | IntArray]) -> IntArray:
    """Lists or arrays, end to end. Raises InvalidRequest for what is no id of 32 bits: nothing is cut to one."""
    if all(isinstance(each, list) for each in ids):
        return _whole(list(chain.from_iterable(ids)))
    return _concatenate([_whole(each) for each in ids])


def _whole(ids: Sequence[int] | IntArray) -> IntArray:
    found = np.asarray(ids)
    if found.dtype == np.int32 or not len(found):
        return found.astype(np.int32, copy=False)
    if found.dtype.kind not in "iu" or int(found.min()) < _INT32.min or int(found.max()) > _INT32.max:
        wrong = next((i for i in ids if not (isinstance(i, SupportsIndex) and -(1 << 31) <= int(i) < 1 << 31)), ids[0])
        raise InvalidRequest(f"ids are numbers of 32 bits; {wrong} is none", field="tokens")
    return found.astype(np.int32)


def _concatenate(arrays: Iterable[IntArray]) -> IntArray:
    arrays = list(arrays)
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


def _depth_first(parents: Sequence[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for s, p in enumerate(parents):
        if not -1 <= p < s:
            raise InvalidRequest(f"segment {s} has parent {p}; parents come first", field="segments.parent")
        children.setdefault(p, []).append(s)
    order: list[int] = []
    stack = children.get(-1, [])[::-1]
    while stack:
        s = stack.pop()
        order.append(s)
        stack.extend(children.get(s, [])[::-1])
    return order
