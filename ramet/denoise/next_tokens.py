"""NextTokens: replies that are written token by token, all of them in arrays."""

from __future__ import annotations

import numpy as np

from ramet.denoise.noise import uniforms
from ramet.denoise.reply_table import ReplyTable, grown
from ramet.denoise.running import Beginning, Chunks, Emitted, logprobs_of
from ramet.denoise.unmask_policies import UnmaskPolicies
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import FloatArray, IntArray

_RUN = 64  # positions whose numbers are drawn at once


class NextTokens:
    """Each step runs a reply's last known token. The row is kept, and the token drawn for it is known at once."""

    least = 1
    largest = 1
    exact = True

    def __init__(self) -> None:
        self._table = ReplyTable()
        self._policies = UnmaskPolicies()
        self._tokens = np.zeros(0, np.int32)
        self._group = np.zeros(0, np.int32)
        self._logprobs = np.zeros(0, np.float32)
        self._uniforms = np.zeros((0, _RUN), np.float32)  # of _RUN positions, the first a multiple of _RUN
        self._runs = np.zeros(0, np.int32)  # which multiple of _RUN; -1: none

    @property
    def groups(self) -> list[UnmaskPolicy]:
        return self._policies.groups

    def add(self, beginning: Beginning) -> int:
        assert beginning.known.tolist() == [True]
        assert beginning.emitted == beginning.start + 1
        place = self._table.add(beginning)
        more = len(self._table) - len(self._tokens)
        if more:
            for name in ("_tokens", "_group", "_logprobs", "_uniforms", "_runs"):
                setattr(self, name, grown(getattr(self, name), more))
        self._tokens[place] = beginning.tokens[0]
        self._runs[place] = -1
        self._logprobs[place] = 0 if beginning.logprobs is None else beginning.logprobs[0]
        self._group[place] = self._policies.add(beginning.unmasking)
        return place

    def drop(self, place: int) -> None:
        self._table.drop(place)
        self._policies.drop(int(self._group[place]))

    def beginning(self, place: int) -> Beginning:
        """The reply goes on at its last known token."""
        table = self._table
        emitted = int(table.emitted[place])
        return Beginning(
            start=emitted - 1,
            tokens=self._tokens[place : place + 1].copy(),
            known=np.ones(1, np.bool_),
            n_prompt=int(table.n_prompt[place]),
            emitted=emitted,
            end=int(table.end[place]),
            stop_ids=table.ends(place),
            unmasking=self.groups[self._group[place]],
            draws=table.draws(place),
            logprobs=self._logprobs[place : place + 1].copy(),
        )

    def group(self, places: IntArray) -> IntArray:
        return self._group[places]

    def uncached(self, places: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        ones = np.ones(len(places), np.int32)
        return ones, np.zeros(len(places), np.int32), ones

    def chunks(self, places: IntArray, sizes: IntArray) -> Chunks:
        ones = np.ones(len(places), np.int32)
        return Chunks(
            places=places,
            n_rows=ones,
            n_kept=ones,
            n_segments=ones,
            n_reads=ones,
            lengths=ones,
            tokens=self._tokens[places],
            positions=self._table.emitted[places] - np.int32(1),
            reads=np.arange(len(places), dtype=np.int32),
            sampling=self._table.sampling(places, self._drawing(places)),
        )

    def take(self, chunks: Chunks, tokens: IntArray, confidence: FloatArray, entropy: FloatArray) -> Emitted:
        assert len(tokens) == len(confidence) == len(entropy) == len(chunks.places)
        places = chunks.places
        logprobs = logprobs_of(confidence)
        self._tokens[places] = tokens
        self._logprobs[places] = logprobs
        table = self._table
        table.emitted[places] += 1
        ended = places[table.is_end(places, tokens)]
        table.end[ended] = table.emitted[ended]
        return Emitted(chunks.n_reads, tokens.astype(np.int32), logprobs, table.finish(places, tokens))

    def _drawing(self, places: IntArray) -> FloatArray:
        """[N] the uniform numbers by which replies draw their next tokens; makes those of _RUN positions at once."""
        at = self._table.emitted[places]
        is_hot = self._table.temperatures[places] > 0
        due = places[is_hot & (self._runs[places] != at // _RUN)]
        if len(due):
            self._runs[due] = self._table.emitted[due] // _RUN
            steps = np.zeros(len(due), np.int32)
            self._uniforms[due] = uniforms(self._table.keys[due], self._runs[due], steps, _RUN)
        return np.where(is_hot, self._uniforms[places, at % _RUN], np.float32(0))
