"""RunningBlocks: replies that are written in blocks of masks, all in arrays.

A position is *masked* until a token is accepted for it, *pending* until a pass ran with that token, and then *cached*:
its keys are in pages, and it is not run again. A reply has one live block, or two where rows of a block run beside
those of the next. Its first block may begin with the end of the prompt, whose tokens are pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ramet.denoise.commits import Passed
from ramet.denoise.noise import uniforms
from ramet.denoise.ragged import before, owners, ranges
from ramet.denoise.reply_table import ReplyTable, grown
from ramet.denoise.running import GOES_ON, Beginning, Chunks, Emitted, Mode, logprobs_of
from ramet.denoise.unmask_policies import UnmaskPolicies
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import BoolArray, FloatArray, IntArray

Ints = npt.NDArray[np.int64]
Shown = Callable[[], Mapping[UnmaskPolicy, Passed]]

_PENDING, _MASKED = range(2)
_FAR = np.iinfo(np.int32).max


class RunningBlocks:
    """In blocks of `block` positions, masked ones holding the id `mask`, which is never drawn.

    A chunk of a size is the pending rows and then the leftmost masked ones of the first block, or, where nothing of it
    is masked, of the next beside what is pending of it. The end of the prompt comes on top, in the first step: it is
    the prompt's, which is run in one go. With `ahead` masked rows of the next block fill up what is left of the
    largest chunks; of these nothing is kept while the first block has masks, which they saw. Behind a token that ends
    a reply nothing is run any more.

    A step of a size above the block is of whole blocks: nothing of a block is kept before all of it is known, and then
    it is kept beside the first step of the next block, whose rows see it as it stays. So tokens are those of the loops
    that these models were published with, and what is in pages is what a pass over all tokens leaves there.

    With the mode "block" each step runs a block whole, and one of its own keeps it: the way of other engines, pass by
    pass, and what chunks are compared with.

    The last block is run to its end whatever the last position of a reply is, so that a reply is the beginning of the
    one that may be longer.
    """

    def __init__(self, block: int, mask: int, mode: Mode = "chunk", ahead: bool = False) -> None:
        assert block >= 2
        self._block, self._mask, self._mode = block, mask, mode
        self.least, self.exact = (2, False) if mode == "chunk" else (block, True)
        self._ahead = ahead and mode == "chunk"
        self.largest = block if mode == "block" or self._ahead else 2 * block
        self._table, self._policies = ReplyTable(), UnmaskPolicies()
        # [P, 2, 2, B]: rows that may run, by block, whether pending or masked, and place: in the order of a chunk
        self._live = np.zeros((0, 2, 2, block), np.bool_)
        self._tokens = np.zeros((0, 2 * block), np.int32)  # of the live blocks
        self._logprobs = np.zeros((0, 2 * block), np.float32)
        self._start = np.zeros(0, np.int32)  # of the first live block
        self._until = np.zeros(
            0, np.int32
        )  # position of a token that ends the reply, and one; far behind where none is
        self._n_open = np.zeros(0, np.int32)  # live blocks
        self._steps = np.zeros((0, 2), np.int32)  # that each live block has taken part in
        self._group = np.zeros(0, np.int32)
        self._streaks = np.zeros((0, 2), np.int32)  # rows that passed in a row (Passed), and their block's start
        # of the cells of _live of a place: where in its two blocks
        self._offsets = np.arange(2 * block).reshape(2, 1, block).repeat(2, 1).ravel()
        self._is_masked = (np.zeros((2, 2, block), np.bool_) | (np.arange(2) == _MASKED)[:, None]).ravel()

    @property
    def groups(self) -> list[UnmaskPolicy]:
        return self._policies.groups

    def add(self, beginning: Beginning) -> int:
        block, n = self._block, len(beginning.tokens)
        assert beginning.start % block == 0
        assert n <= 2 * block
        assert beginning.unmasking.block == block
        place = self._table.add(beginning)
        self._fit()
        known = np.zeros(2 * block, np.bool_)
        known[:n] = beginning.known
        self._start[place], self._steps[place] = beginning.start, beginning.steps
        n_open = self._n_open[place] = 2 if n > block else 1
        self._group[place], self._streaks[place] = self._policies.add(beginning.unmasking), 0
        self._tokens[place] = self._mask
        self._tokens[place, known] = beginning.tokens[beginning.known]
        if beginning.logprobs is not None:
            self._logprobs[place, :n] = beginning.logprobs
        written = beginning.known & (np.arange(n) >= beginning.n_prompt - beginning.start)
        ends = np.flatnonzero(written & np.isin(beginning.tokens, list(beginning.stop_ids)))  # also behind max_tokens
        self._until[place] = beginning.start + ends[0] + 1 if len(ends) else _FAR
        runs = np.arange(2 * block) < n_open * block
        self._live[place, :, _PENDING] = (known & runs).reshape(2, block)
        self._live[place, :, _MASKED] = (~known & runs).reshape(2, block)
        return place

    def drop(self, place: int) -> None:
        self._table.drop(place)
        self._policies.drop(int(self._group[place]))

    def beginning(self, place: int) -> Beginning:
        """All that is known of the live blocks is to be run again."""
        table, start = self._table, int(self._start[place])
        n = int(self._n_open[place]) * self._block
        return Beginning(
            start=start,
            tokens=self._tokens[place, :n].copy(),
            known=~self._live[place, :, _MASKED].ravel()[:n],
            n_prompt=int(table.n_prompt[place]),
            emitted=int(table.emitted[place]),
            end=int(table.end[place]),
            stop_ids=table.ends(place),
            unmasking=self.groups[self._group[place]],
            draws=table.draws(place),
            logprobs=self._logprobs[place, :n].copy(),
            steps=(int(self._steps[place, 0]), int(self._steps[place, 1])),
        )

    def group(self, places: IntArray) -> IntArray:
        return self._group[places]

    def uncached(self, places: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """On top come pending rows of the end of the prompt."""
        block = np.full(len(places), self._block, np.int32)
        if self._mode == "block":
            return block, np.zeros(len(places), np.int32), block
        live = self._live[places]
        decided: BoolArray = np.logical_not(live[:, 0, _MASKED].any(1))
        wanted = np.ones_like(decided) if self._ahead else decided
        whole = _count(live) + self._n_next(places, decided)
        rows = _count(live & self._before_end(places)) + self._n_next(places, wanted)
        on_top = self._n_on_top(places, live).astype(np.int32)
        return np.minimum(rows, self._block + on_top).astype(np.int32), on_top, whole.astype(np.int32)

    def chunks(self, places: IntArray, sizes: IntArray) -> Chunks:
        assert len(places)
        assert 2 <= sizes.min() <= sizes.max() <= self.largest
        return self._whole(places) if self._mode == "block" else self._rows(places, sizes)

    def take(self, chunks: Chunks, tokens: IntArray, confidence: FloatArray, entropy: FloatArray) -> Emitted:
        assert len(tokens) == len(confidence) == len(entropy) == len(chunks.reads)
        places, owner = chunks.places, owners(chunks.n_reads)
        offsets = chunks.positions[chunks.reads] - self._start[places][owner]
        steps = self._step(places)
        passed, accepted = self._policies.settle(self._group[places], steps, chunks.n_reads, confidence, entropy)
        self._keep(chunks)
        self._accept(places[owner[accepted]], offsets[accepted], tokens[accepted], confidence[accepted])
        self._count(chunks)
        shown = self._shown(places, owner, offsets, passed)
        gap = self._gap(places)
        told = self._tell(places, gap, shown)
        self._close(places[(gap >= self._block) & (told.finish == GOES_ON)])
        return told

    def _fit(self) -> None:
        """Places as many as ReplyTable has."""
        more = len(self._table) - len(self._start)
        if more:
            for name in (
                "_live",
                "_tokens",
                "_logprobs",
                "_start",
                "_until",
                "_n_open",
                "_steps",
                "_group",
                "_streaks",
            ):
                setattr(self, name, grown(getattr(self, name), more))

    def _n_next(self, places: IntArray, wanted: BoolArray) -> IntArray:
        """[N] rows of the block to be opened: the next one, beside what is pending of a block that is decided, or
        ahead."""
        goes_on = self._table.end[places] > self._start[places] + self._block
        found: IntArray = self._block * (wanted & goes_on & (self._n_open[places] == 1))
        return found

    def _before_end(self, places: IntArray) -> BoolArray:
        """[N, 2, 2, B] of _live those that are not behind a token that ends the reply."""
        found: BoolArray = self._offsets < (self._until[places] - self._start[places])[:, None]
        return found.reshape(-1, 2, 2, self._block)

    def _n_on_top(self, places: IntArray, live: BoolArray) -> Ints:
        """[N] pending rows of the end of the prompt."""
        n_prompt = self._table.n_prompt[places] - self._start[places]
        found = np.zeros(len(places), np.int64)
        few = np.flatnonzero(n_prompt > 0)
        found[few] = (live[few, 0, _PENDING] & (np.arange(self._block) < n_prompt[few, None])).sum(1)
        return found

    def _step(self, places: IntArray) -> IntArray:
        """[N] which step of its block is due, from 0: of the first block with masked rows."""
        decided = ~self._live[places, 0, _MASKED].any(1)
        return self._steps[places, np.where(decided, self._n_open[places] - 1, 0)]

    def _rows(self, places: IntArray, sizes: IntArray) -> Chunks:
        decided, whole = ~self._live[places, 0, _MASKED].any(1), sizes > self._block
        ahead = (sizes == self._block) & self._ahead
        opens = self._n_next(places, decided | ahead) > 0
        self._open(places[opens], 1)
        live = self._live[places]
        live &= self._before_end(places) | whole[:, None, None, None]
        if self._ahead:
            live[~decided & ~ahead, 1] = False
        counts = _count(live)
        n_rows = np.minimum(counts, np.where(whole, 2 * self._block, sizes + self._n_on_top(places, live)))
        cells = np.flatnonzero(live)[ranges(before(counts), n_rows)]
        owner = owners(n_rows)
        cells -= owner * (4 * self._block)
        keeps = np.stack((decided | ~whole, decided & ~whole), 1)
        return self._chunks(places, n_rows, owner, cells, keeps)

    def _chunks(self, places: IntArray, n_rows: Ints, owner: Ints, cells: Ints, keeps: BoolArray) -> Chunks:
        """Of rows by their cells in _live. keeps [N, 2]: whether pending rows are kept, by block."""
        n, offsets, masked = len(places), self._offsets[cells], self._is_masked[cells]
        reads = np.flatnonzero(masked)
        n_reads = np.bincount(owner[reads], minlength=n)
        behind = offsets >= self._block
        n_behind = np.bincount(owner[behind], minlength=n)
        n_kept = np.bincount(owner[~masked & keeps[owner, behind.astype(np.intp)]], minlength=n)
        lengths = np.stack((n_rows - n_behind, n_behind), 1)
        return self._asking(places, owner, offsets, reads, n_rows, n_kept, n_reads, lengths)

    def _whole(self, places: IntArray) -> Chunks:
        """A block each, kept where all of it is known."""
        n, block = len(places), self._block
        masked = self._live[places, 0, _MASKED]
        n_reads = masked.sum(1)
        n_rows, offsets = np.full(n, block), np.tile(np.arange(block), n)
        lengths = np.stack((n_rows, np.zeros_like(n_rows)), 1)
        n_kept = np.where(n_reads == 0, block, 0)
        return self._asking(places, owners(n_rows), offsets, np.flatnonzero(masked), n_rows, n_kept, n_reads, lengths)

    def _asking(
        self,
        places: IntArray,
        owner: Ints,
        offsets: Ints,
        reads: Ints,
        n_rows: Ints,
        n_kept: Ints,
        n_reads: Ints,
        lengths: Ints,
    ) -> Chunks:
        """Of rows by where in their replies' live blocks they are; lengths [N, 2] are by block."""
        of = places[owner]
        return Chunks(
            places=places,
            n_rows=n_rows.astype(np.int32),
            n_kept=n_kept.astype(np.int32),
            n_segments=(lengths > 0).sum(1, dtype=np.int32),
            n_reads=n_reads.astype(np.int32),
            lengths=lengths[lengths > 0].astype(np.int32),
            tokens=self._tokens.ravel()[of * (2 * self._block) + offsets],
            positions=(self._start[of] + offsets).astype(np.int32),
            reads=reads.astype(np.int32),
            sampling=self._table.sampling(of[reads], self._uniforms(places, n_reads, offsets[reads])),
        )

    def _uniforms(self, places: IntArray, n_reads: Ints, offsets: Ints) -> FloatArray:
        """[M] what the rows that are read draw by: numbers of their block, its step and their place in it."""
        found = np.zeros(len(offsets), np.float32)
        hot = np.flatnonzero((self._table.temperatures[places] > 0) & (n_reads > 0))
        if not len(hot):
            return found
        block, owner = self._block, owners(n_reads)
        used = np.zeros((len(places), 2), np.bool_)
        used[owner, offsets // block] = True
        of, at = np.nonzero(used[hot])
        of = hot[of]
        canvases, steps = self._start[places[of]] // block + at, self._steps[places[of], at]
        numbers = np.zeros((len(places), 2, block), np.float32)
        numbers[of, at] = uniforms(self._table.keys[places[of]], canvases, steps, block)
        return numbers[owner, offsets // block, offsets % block]

    def _keep(self, chunks: Chunks) -> None:
        """What was pending and ran is cached."""
        rows = ranges(before(chunks.n_rows), chunks.n_kept)
        of = np.repeat(chunks.places, chunks.n_kept)
        cells = self._cells(of, chunks.positions[rows] - self._start[of])
        assert self._live.ravel()[cells].all()
        self._live.reshape(-1)[cells] = False

    def _accept(self, places: IntArray, offsets: IntArray, tokens: IntArray, confidence: FloatArray) -> None:
        """Rows by their places and where in their live blocks they are."""
        assert (tokens != self._mask).all(), "the mask's id was drawn"
        live, pending = self._live.reshape(-1), self._cells(places, offsets)
        masked = pending + self._block
        assert live[masked].all()
        live[masked], live[pending] = False, True
        at = places * (2 * self._block) + offsets
        self._tokens.reshape(-1)[at] = tokens
        self._logprobs.reshape(-1)[at] = logprobs_of(confidence)
        ends = np.flatnonzero(self._table.is_end(places, tokens))
        behind = self._start[places[ends]] + offsets[ends] + 1
        for each in (self._table.end, self._until):
            np.minimum.at(each, places[ends], behind)

    def _cells(self, places: IntArray, offsets: IntArray) -> Ints:
        """In _live, flat, those of pending rows; those of masked ones are a block further on."""
        cells: Ints = places.astype(np.int64) * (4 * self._block) + offsets + (offsets >= self._block) * self._block
        return cells

    def _count(self, chunks: Chunks) -> None:
        """Blocks took part in a step."""
        first = chunks.positions[before(chunks.n_rows)] - self._start[chunks.places]
        self._steps[chunks.places, first // self._block] += 1
        self._steps[chunks.places[chunks.n_segments == 2], 1] += 1

    def _shown(self, places: IntArray, owner: Ints, offsets: IntArray, passed: BoolArray) -> Shown:
        """Of each reply the rows that tell how fast replies come: not those behind the reply's end, nor those ahead, in
        the block behind one that is not decided."""
        telling = offsets < (self._table.end[places] - self._start[places])[owner]
        if self._ahead:
            lowest = np.full(len(places), 2 * self._block)
            np.minimum.at(lowest, owner, offsets)
            telling &= offsets // self._block == (lowest // self._block)[owner]
        sizes = np.bincount(owner[telling], minlength=len(places))
        some = np.flatnonzero(sizes)
        if not len(some):
            return dict
        passed, sizes, begins = passed[telling], sizes[some], before(sizes[some])
        all_passed = np.logical_and.reduceat(passed, begins)
        streaks = self._streaked(places[some], offsets[telling][begins], sizes, all_passed)
        groups, unmaskings = self._group[places[some]], tuple(self.groups)  # numbers may be others' once it is told
        return lambda: by_policy(Passed(passed, sizes, streaks), groups, unmaskings)

    def _streaked(self, places: IntArray, offsets: IntArray, sizes: Ints, passed: BoolArray) -> IntArray:
        """[N] rows that had passed in a row before a step of so many, the first at `offsets`, and that did or not."""
        starts = self._start[places] + offsets // self._block * self._block
        had, own = self._streaks[places].T
        streaks: IntArray = np.where(own == starts, had, 0).astype(np.int32)
        self._streaks[places] = np.stack((np.where(passed, streaks + sizes, 0), starts), 1)
        return streaks

    def _gap(self, places: IntArray) -> Ints:
        """[N] where in its live blocks the first is that is not known."""
        masked = self._live[places, :, _MASKED].reshape(len(places), -1)
        first = masked.argmax(1)
        found: Ints = np.where(masked[np.arange(len(places)), first], first, self._n_open[places] * self._block)
        return found

    def _tell(self, places: IntArray, gap: Ints, shown: Shown) -> Emitted:
        """What has become known without a gap, and whether that was all."""
        table, start = self._table, self._start[places]
        told = table.emitted[places]
        until = np.minimum(start + gap, table.end[places]).astype(np.int32)
        table.emitted[places] = until
        base = places * (2 * self._block) - start
        at = ranges(base + told, until - told)
        tokens = self._tokens.ravel()
        last = tokens[base + np.maximum(until - 1, start)]
        return Emitted(until - told, tokens[at], self._logprobs.ravel()[at], table.finish(places, last), shown)

    def _close(self, decided: IntArray) -> None:
        """Leave blocks that are cached behind."""
        places = decided[~self._live[decided, 0, _PENDING].any(1)]
        self._start[places] += self._block
        two = places[self._n_open[places] == 2]
        for each in (self._tokens, self._logprobs):
            each[two, : self._block] = each[two, self._block :]
        self._live[two, 0], self._live[two, 1] = self._live[two, 1], False
        self._steps[two, 0], self._n_open[two] = self._steps[two, 1], 1
        self._open(places[~np.isin(places, two)], 0)

    def _open(self, places: IntArray, at: int) -> None:
        """The first or second live block, all masked."""
        block = self._block
        self._live[places, at, _PENDING], self._live[places, at, _MASKED] = False, True
        self._tokens[places, at * block : (at + 1) * block] = self._mask
        self._steps[places, at], self._n_open[places] = 0, at + 1


def by_policy(shown: Passed, groups: IntArray, unmaskings: Sequence[UnmaskPolicy]) -> dict[UnmaskPolicy, Passed]:
    """What chunks have shown, groups [N] being the numbers of their unmaskings."""
    return {unmaskings[group]: shown.of(groups == group) for group in np.unique(groups).tolist()}


def _count(live: BoolArray) -> Ints:
    """[N] how many are true."""
    words = np.ascontiguousarray(live).reshape(len(live), -1).view(np.uint32)
    found: Ints = np.bitwise_count(words).sum(1, dtype=np.int64)
    return found
