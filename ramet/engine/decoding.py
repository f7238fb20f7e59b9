"""Decoding: the replies that are being written, all of them one step a round. Knows no tensors."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ramet.cache.pages import Pages, Path
from ramet.cache.tables import Tables
from ramet.denoise.running import GOES_ON, Emitted, RunningReplies
from ramet.engine.batch import DecodingStep
from ramet.engine.chunk_choice import ChunkChoice
from ramet.engine.host import Host
from ramet.engine.job import Job
from ramet.engine.reply import Reply
from ramet.tree import FloatArray, IntArray

_COUNTS = ("reply_tokens", "reply_steps", "reply_rows", "preemptions")


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRows:
    """What was drawn for the rows that were read [M], on the host: ids, their probabilities, and the entropies in nats,
    at temperature 1."""

    tokens: IntArray
    confidence: FloatArray
    entropy: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a step made known, and those of its replies, by number, that have not got it yet."""

    step: DecodingStep
    taken: Emitted
    which: list[int]

    def emit(self, which: Iterable[int]) -> None:
        """Give these replies their tokens."""
        taken, n_rows = self.taken, self.step.chunks.n_rows.tolist()
        n_emitted, finish = taken.n_emitted.tolist(), taken.finish.tolist()
        ends = np.cumsum(taken.n_emitted).tolist()
        tokens, logprobs = taken.tokens.tolist(), taken.logprobs.tolist()
        for i in which:
            reply, begin = _reply(self.step.jobs[i]), ends[i] - n_emitted[i]
            reply.n_steps += 1
            reply.n_rows += n_rows[i]
            if n_emitted[i] or finish[i]:
                reply.take(tokens[begin : ends[i]], logprobs[begin : ends[i]], finish[i])


class Decoding:
    """The running replies of an engine, by the places that `running` gives them, with their paths and states.

    `block`: rows of a prompt that see each other. `mask`: the id that is never drawn, -1 for none. `max_running`: how
    many replies run at most. keeps: whether pages of what was written may be found by others: they hold what a pass
    over these tokens leaves there, to rounding.
    """

    def __init__(
        self, running: RunningReplies, choice: ChunkChoice, pages: Pages, host: Host, *, block: int,
        mask: int, max_running: int = sys.maxsize, keeps: bool = True,
    ) -> None:  # fmt: skip
        self.running, self.choice, self.block, self.mask, self.max_running = running, choice, block, mask, max_running
        self.counts = Counter(dict.fromkeys(_COUNTS, 0))
        self._chunk_sizes: Counter[int] = Counter()  # rows of a reply in a step -> times
        self._step_sizes: Counter[int] = Counter()  # replies in a step -> steps
        self._pages, self._tables, self._keeps, self._host = pages, Tables(pages), keeps, host
        self._jobs: dict[int, Job] = {}  # by place, in the order in which they came
        self._spare = np.full(0, -1, np.int32)  # [P] slots for the next recurrent state of a reply
        self._states = np.full(0, -1, np.int32)  # [P] slots of their present ones
        self._turn = 0  # which reply is the first of a step that has no room for all
        self._result: StepResult | None = None  # that is not emitted yet

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        yield from self._jobs.values()

    @property
    def n_pages(self) -> int:
        """Pages that they hold."""
        return sum(len(self._tables.path(place).pages) for place in self._jobs)

    @property
    def n_rows(self) -> int:
        """Rows that they would run at most."""
        return self.choice.most_rows(self.running, self._places()) if self._jobs else 0

    def add(self, job: Job, path: Path, spare: int) -> None:
        """The rows before a reply's beginning are in pages: take over their path. spare: a slot for the state behind
        its next step, -1 for none."""
        reply = _reply(job)
        place = reply.place = self.running.add(reply.beginning)
        self._tables.add(place, path)
        self._jobs[place] = job
        self.choice.add(place, self.running.largest if reply.chunk_size == self.block else reply.chunk_size or 0)
        if self._pages.recurrent:  # two slots: of the present state, and of the next
            while len(self._states) <= place:
                self._states, self._spare = (np.append(each, np.int32(-1)) for each in (self._states, self._spare))
            self._states[place], self._spare[place] = path.state, spare

    def step(self, room: int, n_other: int, only: Job | None = None) -> tuple[DecodingStep | None, list[Job]]:
        """The rows of the next step, `room` at most, of all replies or of one; n_other rows are in the round besides.
        And the replies that gave up their pages for it, the newest first: these wait again."""
        given_up: list[Job] = []
        while self._jobs and only not in given_up:
            places = self._turned() if only is None else np.array([_reply(only).place], np.int32)
            own = self.choice.of(self.running, self._tables, places, room, n_other)
            if not len(own):
                break
            self._turn = self._turn + len(own) if len(own) < len(places) else 0
            places = places[: len(own)]
            chunks = self.running.chunks(places, own)
            recurrent = self._pages.recurrent
            begun, states = (self._states[places], self._spare[places]) if recurrent else (None, None)
            units = self._host.lay(self._tables, chunks, begun, states)
            if units is not None:
                jobs = [self._jobs[place] for place in places.tolist()]
                return DecodingStep(jobs, chunks, units, self.mask, states), given_up
            given_up.append(self._give_up())
        return None, given_up

    def commit(self, step: DecodingStep, drawn: DrawnRows) -> list[Job]:
        """Take the results of a step in; returns the jobs whose replies have ended. What the others have gained they
        get by `emit`, which may wait until the next round is on its way."""
        chunks = step.chunks
        self._tables.advance(chunks.places, chunks.n_kept)
        if step.states is not None:
            self._swap_states(chunks.places, step.states)
        taken = self.running.take(chunks, drawn.tokens, drawn.confidence, drawn.entropy)
        if len(step.jobs) == 1:
            step.jobs[0].alone = False
        goes_on = taken.finish == GOES_ON
        result, ended = StepResult(step, taken, np.flatnonzero(goes_on).tolist()), np.flatnonzero(~goes_on).tolist()
        if ended:
            result.emit(ended)
        for i in ended:
            self._leave(step.jobs[i])
        self._result = result  # not before: where emitting some fails, nothing is due to the others but the fault
        return [step.jobs[i] for i in ended]

    def emit(self) -> None:
        """Give what the last step made known to the replies, and to what sizes are chosen by."""
        result, self._result = self._result, None
        if result is None:
            return
        result.emit(result.which)
        self.choice.observe(result.taken)
        n_tokens, n_rows = len(result.taken.tokens), len(result.step.chunks.tokens)
        self.counts.update(reply_tokens=n_tokens, reply_steps=len(result.step.jobs), reply_rows=n_rows)
        self._step_sizes[len(result.step.jobs)] += 1
        self._chunk_sizes.update(result.step.chunks.n_rows.tolist())

    def drop(self, job: Job) -> None:
        """End a reply, with what it holds."""
        reply = _reply(job)
        self.running.drop(reply.place)
        path = self._tables.drop(reply.place)
        if self._pages.recurrent:
            self._pages.drop_state(int(self._spare[reply.place]))
            path.state = int(self._states[reply.place])
        del self._jobs[reply.place]
        reply.place = -1
        self._pages.release(path)

    def stats(self) -> dict[str, float]:
        """Counters."""
        return {f"{name}_total": float(n) for name, n in self.counts.items()}

    def histograms(self) -> dict[str, dict[int, int]]:
        """Sizes of steps and of chunks, as they were run: how many times each came."""
        return {"step_replies": dict(self._step_sizes), "chunk_size": dict(self._chunk_sizes)}

    def _swap_states(self, places: IntArray, states: IntArray) -> None:
        """What a step left is the present state; what it began from has room for the next, unless there was none, or
        the index keeps it."""
        self._spare[places], self._states[places] = self._states[places], states
        for place, slot in zip(places.tolist(), self._spare[places].tolist(), strict=True):
            if slot >= 0 and self._pages.shares_state(slot):
                self._pages.drop_state(slot)
                slot = -1
            if slot < 0:
                self._spare[place] = self._taken_state()

    def _taken_state(self) -> int:
        slot = self._pages.take_state()
        assert slot is not None, "a reply begins when there are slots for its states"
        return slot

    def _places(self) -> IntArray:
        return np.fromiter(self._jobs, np.int32, len(self._jobs))

    def _turned(self) -> IntArray:
        turn = self._turn % len(self._jobs)
        return np.roll(self._places(), -turn) if turn else self._places()

    def _give_up(self) -> Job:
        """The newest reply waits again, with what is known of it; or to be written again, since rows that are computed
        together are rounded otherwise, and with more known than at first they see more."""
        self.emit()
        job = self._jobs[next(reversed(self._jobs))]
        reply = _reply(job)
        if reply.repeats:
            reply.again()
        else:
            reply.beginning = self.running.beginning(reply.place)
        self.drop(job)
        self.counts.update(preemptions=1)
        return job

    def _leave(self, job: Job) -> None:
        """A reply has ended. Rows that are as in a pass over all of its tokens are kept for others."""
        reply = _reply(job)
        if self._keeps and self.running.exact and not self._pages.recurrent:
            path = self._tables.path(reply.place)
            path.length = int(self._tables.n_rows[reply.place])
            keys = self._pages.keys(reply.known(path.length), job.salt, self.block)
            self._pages.keep(keys, path)
        self.drop(job)


def _reply(job: Job) -> Reply:
    assert job.reply is not None
    return job.reply
