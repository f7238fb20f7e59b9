"""CompiledBlocks: RunningBlocks in compiled code, which makes or takes the step of all replies in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ramet.denoise.commits import Passed, by_policy
from ramet.denoise.running import Beginning, Chunks, Emitted, Mode, logprobs_of
from ramet.denoise.running_blocks import RunningBlocks
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.ops.native.arrays import address, addresses, cut
from ramet.ops.native.loader import Library
from ramet.tree import BoolArray, FloatArray, IntArray, Sampling


class CompiledBlocks(RunningBlocks):
    """RunningBlocks with equal bits, in a small part of its time."""

    def __init__(self, found: Library, block: int, mask: int, mode: Mode = "chunk", ahead: bool = False) -> None:
        super().__init__(block, mask, mode, ahead)
        self._functions = found.held
        self._state = np.zeros(0, np.int64)  # addresses of all arrays, and numbers: `Blocks` of blocks.cpp
        self._last: tuple[Chunks, IntArray] | None = None  # the last step, and the buffer that its arrays lie in

    def add(self, beginning: Beginning) -> int:
        place = super().add(beginning)
        table, live = self._table, self._live
        arrays = (
            live.rows, live.tokens, live.logprobs, live.start, live.until, live.n_open, live.steps,
            self._streaks, self._group, table.emitted, table.end, table.n_prompt, table.temperatures, table.keys,
            table.top_p, table.top_k, table.stop_ids, self._policies.thresholds,
        )  # fmt: skip
        assert all(each.flags.c_contiguous for each in arrays)
        numbers = (table.stop_ids.shape[1], self._block, live.mask, self._mode == "block", self._ahead)
        self._state = np.array([*addresses(*arrays), *numbers], np.int64)
        return place

    def uncached(self, places: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        n, found = len(places), np.empty((3, len(places)), np.int32)
        self._functions.ramet_blocks_uncached(self._state.ctypes.data, places.ctypes.data, n, found.ctypes.data)
        return found[0], found[1], found[2]

    def chunks(self, places: IntArray, sizes: IntArray) -> Chunks:
        assert len(places)
        assert 2 <= sizes.min() <= sizes.max() <= self.largest
        n, most = len(places), self._most(places)
        rooms = (3, n, n, n, n, 2 * n, *[most] * 7)
        data = np.empty(sum(rooms), np.int32)
        self._functions.ramet_blocks_chunks(
            self._state.ctypes.data, places.ctypes.data, sizes.ctypes.data, n, data.ctypes.data
        )
        all_segments, all_rows, all_reads = data[:3].tolist()
        used = (3, n, n, n, n, all_segments, all_rows, all_rows, *[all_reads] * 5)
        arrays = cut(data, rooms, used)
        n_rows, n_kept, n_segments, n_reads, lengths, tokens, positions, reads = arrays[1:9]
        temperatures, uniforms, top_p = (each.view(np.float32) for each in arrays[9:12])
        made = Chunks(
            places=places, n_rows=n_rows, n_kept=n_kept, n_segments=n_segments, n_reads=n_reads, lengths=lengths,
            tokens=tokens, positions=positions, reads=reads,
            sampling=Sampling(temperatures, uniforms, top_p, top_k=arrays[12]),
        )  # fmt: skip
        self._last = made, data
        return made

    def take(self, chunks: Chunks, tokens: IntArray, confidence: FloatArray, entropy: FloatArray) -> Emitted:
        assert len(tokens) == len(confidence) == len(entropy) == len(chunks.reads)
        assert self._last is not None
        last, data = self._last
        assert last is chunks, "another step was made since"
        places, n, n_reads, most = chunks.places, len(chunks.places), len(tokens), self._most(chunks.places)
        settled = self._settled(chunks, confidence, entropy)
        tokens, confidence = tokens.astype(np.int32), np.ascontiguousarray(confidence, np.float32)
        logprobs = logprobs_of(confidence)
        rooms = (n, n, n, most, most, -(-(n + n_reads) // 4))
        out = np.empty(sum(rooms), np.int32)
        n_emitted = self._functions.ramet_blocks_take(
            self._state.ctypes.data, places.ctypes.data, n, data.ctypes.data, n_reads, tokens.ctypes.data,
            confidence.ctypes.data, logprobs.ctypes.data, *map(address, settled), out.ctypes.data,
        )  # fmt: skip
        assert n_emitted >= 0, "the mask's id was drawn, or a row is not what it ran as"
        n_each, sizes, streaks, emitted, sure, rest = cut(out, rooms, (n, n, n, n_emitted, n_emitted, rooms[-1]))
        shown = partial(_shown, sizes, streaks, rest.view(np.bool_)[n:], self._group[places], tuple(self.groups))
        return Emitted(n_each, emitted, sure.view(np.float32), rest.view(np.int8)[:n], shown)

    def _most(self, places: IntArray) -> int:
        """The most rows that a step of these replies has, and the most tokens that it emits."""
        return 2 * self._block * len(places)

    def _settled(
        self, chunks: Chunks, confidence: FloatArray, entropy: FloatArray
    ) -> tuple[BoolArray | None, BoolArray | None]:
        """Which rows pass and are accepted; None where thresholds alone decide it, in the compiled code."""
        if self._policies.are_plain:
            return None, None
        groups, steps = self._group[chunks.places], self._live.step(chunks.places)
        return self._policies.settle(groups, steps, chunks.n_reads, confidence, entropy)


def _shown(
    sizes: IntArray, streaks: IntArray, passed: BoolArray, groups: IntArray, unmaskings: Sequence[UnmaskPolicy]
) -> dict[UnmaskPolicy, Passed]:
    """Which rows passed, by policy; sizes, streaks, groups [N] are of all replies, of which some show nothing."""
    some, n = np.flatnonzero(sizes), sizes.astype(np.int64)
    return by_policy(Passed(passed[: n.sum()], n[some], streaks[some]), groups[some], unmaskings)
