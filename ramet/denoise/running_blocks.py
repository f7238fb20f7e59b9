"""RunningBlocks: replies that are written in blocks of masks, all of them in one step.

Chooses the rows of a step, and says what became known by it. `LiveBlocks` has the state of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ramet.denoise.commits import Passed, by_policy
from ramet.denoise.live_blocks import MASKED, PENDING, LiveBlocks
from ramet.denoise.noise import uniforms
from ramet.denoise.ragged import before, owners, ranges
from ramet.denoise.reply_table import ReplyTable, grown
from ramet.denoise.running import GOES_ON, Beginning, Chunks, Emitted, Mode
from ramet.denoise.unmask_policies import UnmaskPolicies
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import BoolArray, FloatArray, IntArray

Ints = npt.NDArray[np.int64]
Shown = Callable[[], Mapping[UnmaskPolicy, Passed]]


class RunningBlocks:
    """Replies written in blocks of `block` positions; masked ones hold the id `mask`, which is never drawn.

    A chunk is the pending rows and then the leftmost masked ones of the first block, up to the chunk's size. Where
    nothing of that block is masked, it is its pending rows and the leftmost masked ones of the next block. The end of
    the prompt comes on top, in the first step: it is run in one go. With `ahead`, masked rows of the next block fill up
    what is left of the largest chunks; nothing of these is kept while the first block has masks, which they saw. No row
    is run behind a token that ends a reply.

    A step of a size above the block is of whole blocks: nothing of a block is kept before all of it is known. Then it
    is kept beside the first step of the next block, whose rows see its final tokens. So tokens are those of the loops
    that these models were published with, and pages hold what a pass over all tokens leaves there.

    With the mode "block" each step runs one whole block, and a step of its own keeps it, as other engines do.

    The last block is run to its end wherever a reply's last position is, so that a short reply is the beginning of a
    longer one.
    """

    def __init__(self, block: int, mask: int, mode: Mode = "chunk", ahead: bool = False) -> None:
        assert block >= 2
        self._block = block
        self._mode = mode
        self._ahead = ahead and mode == "chunk"
        self.least, self.exact = (2, False) if mode == "chunk" else (block, True)
        self.largest = block if mode == "block" or self._ahead else 2 * block
        self._table = ReplyTable()
        self._policies = UnmaskPolicies()
        self._live = LiveBlocks(block, mask)
        self._group = np.zeros(0, np.int32)
        self._streaks = np.zeros((0, 2), np.int32)  # rows that passed in a row (Passed), and their block's start

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
        self._live.put(place, beginning)
        self._group[place] = self._policies.add(beginning.unmasking)
        self._streaks[place] = 0
        return place

    def drop(self, place: int) -> None:
        self._table.drop(place)
        self._policies.drop(int(self._group[place]))

    def beginning(self, place: int) -> Beginning:
        """All that is known of the live blocks is to be run again."""
        table, live = self._table, self._live
        n = int(live.n_open[place]) * self._block
        return Beginning(
            start=int(live.start[place]),
            tokens=live.tokens[place, :n].copy(),
            known=~live.rows[place, :, MASKED].ravel()[:n],
            n_prompt=int(table.n_prompt[place]),
            emitted=int(table.emitted[place]),
            end=int(table.end[place]),
            stop_ids=table.ends(place),
            unmasking=self.groups[self._group[place]],
            draws=table.draws(place),
            logprobs=live.logprobs[place, :n].copy(),
            steps=(int(live.steps[place, 0]), int(live.steps[place, 1])),
        )

    def group(self, places: IntArray) -> IntArray:
        return self._group[places]

    def uncached(self, places: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """On top come pending rows of the end of the prompt."""
        block = np.full(len(places), self._block, np.int32)
        if self._mode == "block":
            return block, np.zeros(len(places), np.int32), block
        rows = self._live.rows[places]
        decided = self._live.are_decided(places)
        wanted = np.ones_like(decided) if self._ahead else decided
        whole = _count(rows) + self._n_next(places, decided)
        n_rows = _count(rows & self._live.before_end(places)) + self._n_next(places, wanted)
        on_top = self._n_on_top(places, rows).astype(np.int32)
        return np.minimum(n_rows, self._block + on_top).astype(np.int32), on_top, whole.astype(np.int32)

    def chunks(self, places: IntArray, sizes: IntArray) -> Chunks:
        assert len(places)
        assert 2 <= sizes.min() <= sizes.max() <= self.largest
        return self._whole(places) if self._mode == "block" else self._rows(places, sizes)

    def take(self, chunks: Chunks, tokens: IntArray, confidence: FloatArray, entropy: FloatArray) -> Emitted:
        assert len(tokens) == len(confidence) == len(entropy) == len(chunks.reads)
        places = chunks.places
        live = self._live
        owner = owners(chunks.n_reads)
        offsets = chunks.positions[chunks.reads] - live.start[places][owner]
        steps = live.step(places)
        passed, accepted = self._policies.settle(self._group[places], steps, chunks.n_reads, confidence, entropy)
        live.keep(chunks)
        self._accept(places[owner[accepted]], offsets[accepted], tokens[accepted], confidence[accepted])
        live.count(chunks)
        shown = self._shown(places, owner, offsets, passed)
        gap = live.gap(places)
        emitted = self._emit(places, gap, shown)
        live.close(places[(gap >= self._block) & (emitted.finish == GOES_ON)])
        return emitted

    def _fit(self) -> None:
        """Make the arrays as long as those of ReplyTable."""
        more = len(self._table) - len(self._group)
        if more:
            self._live.grow(len(self._table))
            self._group = grown(self._group, more)
            self._streaks = grown(self._streaks, more)

    def _n_next(self, places: IntArray, wanted: BoolArray) -> IntArray:
        """[N] rows of the next block, which opens beside the pending rows of a decided one, or ahead."""
        goes_on = self._table.end[places] > self._live.start[places] + self._block
        found: IntArray = self._block * (wanted & goes_on & (self._live.n_open[places] == 1))
        return found

    def _n_on_top(self, places: IntArray, rows: BoolArray) -> Ints:
        """[N] pending rows of the end of the prompt; rows [N, 2, 2, B]."""
        n_prompt = self._table.n_prompt[places] - self._live.start[places]
        found = np.zeros(len(places), np.int64)
        few = np.flatnonzero(n_prompt > 0)
        found[few] = (rows[few, 0, PENDING] & (np.arange(self._block) < n_prompt[few, None])).sum(1)
        return found

    def _rows(self, places: IntArray, sizes: IntArray) -> Chunks:
        """The pending rows of each, and then as many masked ones as its size has room for."""
        live = self._live
        decided, whole = live.are_decided(places), sizes > self._block
        ahead = (sizes == self._block) & self._ahead
        opens = self._n_next(places, decided | ahead) > 0
        live.open(places[opens], 1)
        rows = live.rows[places]
        rows &= live.before_end(places) | whole[:, None, None, None]
        if self._ahead:
            rows[~decided & ~ahead, 1] = False
        counts = _count(rows)
        n_rows = np.minimum(counts, np.where(whole, 2 * self._block, sizes + self._n_on_top(places, rows)))
        cells = np.flatnonzero(rows)[ranges(before(counts), n_rows)]
        owner = owners(n_rows)
        cells -= owner * (4 * self._block)
        keeps = np.stack((decided | ~whole, decided & ~whole), 1)
        return self._chunks(places, n_rows, owner, cells, keeps)

    def _chunks(self, places: IntArray, n_rows: Ints, owner: Ints, cells: Ints, keeps: BoolArray) -> Chunks:
        """The step of rows by their cells in LiveBlocks.rows. keeps [N, 2]: whether blocks keep pending rows."""
        n, offsets, masked = len(places), self._live.offsets[cells], self._live.is_masked[cells]
        reads = np.flatnonzero(masked)
        n_reads = np.bincount(owner[reads], minlength=n)
        behind = offsets >= self._block
        n_behind = np.bincount(owner[behind], minlength=n)
        n_kept = np.bincount(owner[~masked & keeps[owner, behind.astype(np.intp)]], minlength=n)
        lengths = np.stack((n_rows - n_behind, n_behind), 1)
        return self._made(places, owner, offsets, reads, n_kept, n_reads, lengths)

    def _whole(self, places: IntArray) -> Chunks:
        """The whole first block of each, kept where all of it is known."""
        n, block = len(places), self._block
        masked = self._live.rows[places, 0, MASKED]
        n_reads = masked.sum(1)
        n_rows, offsets = np.full(n, block), np.tile(np.arange(block), n)
        lengths = np.stack((n_rows, np.zeros_like(n_rows)), 1)
        n_kept = np.where(n_reads == 0, block, 0)
        return self._made(places, owners(n_rows), offsets, np.flatnonzero(masked), n_kept, n_reads, lengths)

    def _made(
        self, places: IntArray, owner: Ints, offsets: Ints, reads: Ints, n_kept: Ints, n_reads: Ints, lengths: Ints
    ) -> Chunks:
        """The step of rows by where in their replies' live blocks they are; lengths [N, 2] are by block."""
        of = places[owner]
        return Chunks(
            places=places,
            n_rows=lengths.sum(1, dtype=np.int32),
            n_kept=n_kept.astype(np.int32),
            n_segments=(lengths > 0).sum(1, dtype=np.int32),
            n_reads=n_reads.astype(np.int32),
            lengths=lengths[lengths > 0].astype(np.int32),
            tokens=self._live.tokens.ravel()[of * (2 * self._block) + offsets],
            positions=(self._live.start[of] + offsets).astype(np.int32),
            reads=reads.astype(np.int32),
            sampling=self._table.sampling(of[reads], self._uniforms(places, n_reads, offsets[reads])),
        )

    def _uniforms(self, places: IntArray, n_reads: Ints, offsets: Ints) -> FloatArray:
        """[M] the numbers by which rows draw, each by the row's block, the block's step and the row's place."""
        found = np.zeros(len(offsets), np.float32)
        hot = np.flatnonzero((self._table.temperatures[places] > 0) & (n_reads > 0))
        if not len(hot):
            return found
        block, owner = self._block, owners(n_reads)
        used = np.zeros((len(places), 2), np.bool_)
        used[owner, offsets // block] = True
        of, at = np.nonzero(used[hot])
        of = hot[of]
        canvases, steps = self._live.start[places[of]] // block + at, self._live.steps[places[of], at]
        numbers = np.zeros((len(places), 2, block), np.float32)
        numbers[of, at] = uniforms(self._table.keys[places[of]], canvases, steps, block)
        return numbers[owner, offsets // block, offsets % block]

    def _accept(self, places: IntArray, offsets: IntArray, tokens: IntArray, confidence: FloatArray) -> None:
        """Rows by their places, and where in their live blocks they are. A token that ends a reply ends it here."""
        live, table = self._live, self._table
        live.accept(places, offsets, tokens, confidence)
        ends = np.flatnonzero(table.is_end(places, tokens))
        behind = live.start[places[ends]] + offsets[ends] + 1
        for each in (table.end, live.until):
            np.minimum.at(each, places[ends], behind)

    def _shown(self, places: IntArray, owner: Ints, offsets: IntArray, passed: BoolArray) -> Shown:
        """Which rows passed, of those that show how fast replies come: not those behind the reply's end, nor those
        ahead, in the block behind one that is not decided."""
        counts = offsets < (self._table.end[places] - self._live.start[places])[owner]
        if self._ahead:
            lowest = np.full(len(places), 2 * self._block)
            np.minimum.at(lowest, owner, offsets)
            counts &= offsets // self._block == (lowest // self._block)[owner]
        sizes = np.bincount(owner[counts], minlength=len(places))
        some = np.flatnonzero(sizes)
        if not len(some):
            return dict
        passed, sizes, begins = passed[counts], sizes[some], before(sizes[some])
        all_passed = np.logical_and.reduceat(passed, begins)
        streaks = self._streaked(places[some], offsets[counts][begins], sizes, all_passed)
        groups = self._group[places[some]]
        unmaskings = tuple(self.groups)  # a copy: a number may be another policy's when the caller looks
        return lambda: by_policy(Passed(passed, sizes, streaks), groups, unmaskings)

    def _streaked(self, places: IntArray, offsets: IntArray, sizes: Ints, passed: BoolArray) -> IntArray:
        """[N] rows that had passed in a row before this step. The step has `sizes` [N] rows, the first at `offsets`
        [N], all of which passed or not."""
        starts = self._live.start[places] + offsets // self._block * self._block
        had, own = self._streaks[places].T
        streaks: IntArray = np.where(own == starts, had, 0).astype(np.int32)
        self._streaks[places] = np.stack((np.where(passed, streaks + sizes, 0), starts), 1)
        return streaks

    def _emit(self, places: IntArray, gap: Ints, shown: Shown) -> Emitted:
        """What has become known without a gap, and whether that was all."""
        table, start = self._table, self._live.start[places]
        done = table.emitted[places]
        until = np.minimum(start + gap, table.end[places]).astype(np.int32)
        table.emitted[places] = until
        base = places * (2 * self._block) - start
        at = ranges(base + done, until - done)
        tokens = self._live.tokens.ravel()
        last = tokens[base + np.maximum(until - 1, start)]
        return Emitted(until - done, tokens[at], self._live.logprobs.ravel()[at], table.finish(places, last), shown)


def _count(rows: BoolArray) -> Ints:
    """[N] how many are true."""
    words = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint32)
    found: Ints = np.bitwise_count(words).sum(1, dtype=np.int64)
    return found
