"""Replies: which prompts go into pages, and what the live replies run, all of them together. Knows no tensors."""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ramet.cache.pages import Pages, n_common
from ramet.cache.tables import Tables
from ramet.denoise.asked import grown
from ramet.denoise.commits import Commits
from ramet.denoise.elastic import ChunkSizes, Demand, Fixed
from ramet.denoise.running import GOES_ON, Chunks, RunningReplies, Taken
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.laying import lay
from ramet.engine.reply import Reply
from ramet.tree import FloatArray, IntArray, Segment, Tree
from ramet.units import Unit, Units

STATES_A_REPLY = 3  # before a chunk of its prompt and behind it, or before a step and behind it; and one that is kept
_ESTIMATORS = 1024
_COUNTS = ("reply_tokens", "reply_steps", "reply_rows", "preemptions")


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What was drawn for the rows that were read [M], on the host: ids, their probabilities, and the entropies in nats,
    at temperature 1."""

    tokens: IntArray
    confidence: FloatArray
    entropy: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Rows of a reply's prompt in a round. state: the slot that they leave their recurrent state in, -1 for none."""

    reply: Reply
    unit: Unit
    state: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step of live replies: their rows, as a round takes them. states [N]: the slots that they leave their recurrent
    states in (None: they have none)."""

    replies: list[Reply]
    chunks: Chunks
    units: Units
    states: IntArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a step made known, and those of its replies, by number, that it is still to be told to."""

    step: Step
    taken: Taken
    which: list[int]

    def tell(self, which: Iterable[int]) -> None:
        """Those of the replies."""
        taken, ends, n_rows = self.taken, np.cumsum(self.taken.n_told).tolist(), self.step.chunks.n_rows.tolist()
        tokens, logprobs = taken.tokens.tolist(), taken.logprobs.tolist()
        n_told, finish = taken.n_told.tolist(), taken.finish.tolist()
        for i in which:
            reply, begin = self.step.replies[i], ends[i] - n_told[i]
            reply.n_steps += 1
            reply.n_rows += n_rows[i]
            if n_told[i] or finish[i]:
                reply.take(tokens[begin : ends[i]], logprobs[begin : ends[i]], finish[i])


@dataclass(slots=True, eq=False)
class Part:
    """What a round has of replies. `mask` is an id that they never draw (-1: none)."""

    mask: int = -1
    encodings: list[Encoding] = field(default_factory=list)
    step: Step | None = None

    @property
    def replies(self) -> list[Reply]:
        return [*(each.reply for each in self.encodings), *(self.step.replies if self.step else [])]

    @property
    def n_tokens(self) -> int:
        return sum(each.unit.tree.n_tokens for each in self.encodings) + (
            len(self.step.units.tokens) if self.step else 0
        )


class Replies:
    """The replies of an engine: first come, first served, until pages or `max_live` places are taken. Pages that are
    `promised` to others who came before a reply are left to them.

    `block`: rows of a prompt that see each other. `mask`: the id that is never drawn, -1 for none. `grain`: where the
    chunks of a prompt end, in rows from its start; `min_chunk`: fewer wait for a round that has nothing else. When
    pages run out, the newest live reply gives up its own, and begins again when another has ended. n_other_states:
    slots of recurrent states that are left to others. keeps: whether pages of what was written may be found by others:
    they are what a pass over these tokens leaves there, to rounding.
    """

    def __init__(
        self, live: RunningReplies, sizes: ChunkSizes, pages: Pages, *, block: int, mask: int, grain: int = 1,
        min_chunk: int = 1, max_live: int = sys.maxsize, n_other_states: int = 0, keeps: bool = True,
    ) -> None:  # fmt: skip
        self.live, self.sizes, self.mask, self.max_live = live, sizes, mask, max_live
        self.judge: Callable[[Chunks, Told], Told] = lambda _, drawn: drawn  # what a simulation replaces
        self.counts = Counter(dict.fromkeys(_COUNTS, 0))
        self._chunk_sizes: Counter[int] = Counter()  # rows of a reply in a step -> times
        self._step_sizes: Counter[int] = Counter()  # replies in a step -> steps
        self._pages, self._tables = pages, Tables(pages)
        self.grain = max(grain, block)
        self._block, self._min_chunk = block, min_chunk
        self._n_others, self._keeps = n_other_states, keeps
        self._waiting: deque[Reply] = deque()
        self.promised: Sequence[tuple[float, int]] = ()  # (when who gets them came, pages): told before each round
        self._begun: list[Reply] = []  # whose prompts are on their way into pages
        self._lives: dict[int, Reply] = {}  # by place, in the order in which they came
        self._commits: dict[UnmaskPolicy, Commits] = {}  # least recently used first
        self._spare = np.full(0, -1, np.int32)  # [P] slots for the next recurrent state of a live reply
        self._states = np.full(0, -1, np.int32)  # [P] slots of their present ones
        self._crowded = False  # pages ran out, and none has ended since
        self._starved = False  # no page, or slot, was left for a prompt
        self._turn = 0  # which live reply is the first of a step that has no room for all
        self._own_sizes = np.zeros(0, np.int32)  # [P] of chunks that a live reply asks for; 0: the engine's
        self._news: StepResult | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun) + len(self._lives)

    @property
    def n_waiting(self) -> int:
        """Replies that wait for rows of prompts."""
        return len(self._waiting) + len(self._begun)

    @property
    def n_live(self) -> int:
        return len(self._lives)

    @property
    def n_pages(self) -> int:
        """Pages that replies hold."""
        return sum(len(each.path.pages) for each in (*self._begun, *self._lives.values()))

    @property
    def n_states(self) -> int:
        """Slots of recurrent states that replies hold, or may need."""
        return STATES_A_REPLY * (len(self._begun) + len(self._lives)) if self._pages.recurrent else 0

    @property
    def n_rows(self) -> int:
        """Rows that the live replies would run at most."""
        if not self._lives:
            return 0
        places = self._places()
        uncached, on_top, whole = self.live.uncached(places)
        sizes, most = self._own_sizes[places], self._block if len(places) > 1 else self.live.largest
        return int(self._rows(np.where(sizes > 0, sizes, most), uncached, on_top, whole).sum())

    @property
    def alone(self) -> Reply | None:
        """One that is to share no round, and need not wait for what others hold."""
        begun = next((each for each in (*self._lives.values(), *self._begun) if each.alone), None)
        return begun or next((each for each in self._waiting if each.alone and self._may_begin(each)), None)

    @property
    def lacks_pages_since(self) -> float:
        """When the first came of those that wait for pages."""
        first = next(iter(self._waiting), None)
        return math.inf if first is None or self._has_pages(first) else first.queued_at

    def add(self, reply: Reply) -> None:
        """Behind those that wait."""
        reply.keys = self._keys(reply, reply.beginning.start)
        self._waiting.append(reply)

    def encode(self, part: Part, room: int) -> None:
        """Bring rows of prompts into a round, `room` at most, and let begin what can. Where they hold all pages, and
        none can go on, the newest gives up its own."""
        self._encode(part, room)
        while self._starved and self._begun and not self._lives and not part.encodings:
            self._wait(self._begun.pop())
            self._crowded = True
            self.counts.update(preemptions=1)
            if self._begun:
                self._encode(part, room)

    def _encode(self, part: Part, room: int) -> None:
        alone, self._starved = self.alone, False
        for reply in list(self._begun):
            if alone in (None, reply):
                room -= self._advance(part, reply, room)
        for reply in list(self._waiting):
            if alone not in (None, reply) or (alone is None and self._awaits(reply)):
                continue
            if room < 1 or not self._may_begin(reply):
                return
            self._begin(reply)
            room -= self._advance(part, reply, room)

    def step(self, part: Part, room: int, n_other: int) -> None:
        """Bring the rows of the live replies into a round, `room` at most; n_other rows are in it besides."""
        alone = self.alone
        while self._lives and part.step is None:
            if alone is not None and alone.place < 0:
                if part.encodings:
                    return
                alone = None  # it waits for pages that others hold
            places = self._turned() if alone is None else np.array([alone.place], np.int32)
            places, sizes = self._sized(places, room, n_other)
            if not len(places):
                return
            chunks = self.live.chunks(places, sizes)
            recurrent = self._pages.recurrent
            begun, states = (self._states[places], self._spare[places]) if recurrent else (None, None)
            units = lay(self._tables, chunks, begun, states)
            if units is None:
                self._give_up()
                continue
            replies = [self._lives[place] for place in places.tolist()]
            part.mask, part.step = self.mask, Step(replies, chunks, units, states)

    def commit(self, part: Part, drawn: Told | None) -> list[Reply]:
        """Take the results of a round in; returns the replies that have ended. What the others have gained they are
        told by `tell`, which may wait until the next round is on its way."""
        self.tell()
        for each in part.encodings:
            self._encoded(each)
        if part.step is None:
            return []
        assert drawn is not None
        step, chunks = part.step, part.step.chunks
        self._tables.advance(chunks.places, chunks.n_kept)
        if step.states is not None:
            self._swap_states(chunks.places, step.states)
        drawn = self.judge(chunks, drawn)
        taken = self.live.take(chunks, drawn.tokens, drawn.confidence, drawn.entropy)
        if len(step.replies) == 1:
            step.replies[0].alone = False
        goes_on = taken.finish == GOES_ON
        news, ended = StepResult(step, taken, np.flatnonzero(goes_on).tolist()), np.flatnonzero(~goes_on).tolist()
        if ended:
            news.tell(ended)
        for i in ended:
            self._leave(step.replies[i])
        self._news = news  # not before: where telling some fails, nothing is due to the others but the fault
        return [step.replies[i] for i in ended]

    def tell(self) -> None:
        """What the last round made known: to the replies, and to what sizes are chosen by."""
        news, self._news = self._news, None
        if news is None:
            return
        news.tell(news.which)
        for unmasking, passed in news.taken.passed().items():
            commits = self._estimator(unmasking)
            commits.observe(passed)
            commits.renew()
        n_tokens, n_rows = len(news.taken.tokens), len(news.step.chunks.tokens)
        self.counts.update(reply_tokens=n_tokens, reply_steps=len(news.step.replies), reply_rows=n_rows)
        self._step_sizes[len(news.step.replies)] += 1
        self._chunk_sizes.update(news.step.chunks.n_rows.tolist())

    def restart(self, part: Part) -> None:
        """After a round that failed: what it had of replies is run again, each alone."""
        self.tell()
        for each in part.encodings:
            self._pages.drop_state(each.state) if each.state >= 0 else None
            self._begun.remove(each.reply)
            self._wait(each.reply)
        for reply in part.replies:
            reply.alone = True

    def drop(self, replies: Sequence[Reply]) -> None:
        """End replies, with what they hold; none of a round under way."""
        self.tell()
        for reply in replies:
            if reply.place >= 0:
                self._release(reply)
            elif reply in self._begun:
                self._begun.remove(reply)
                self._pages.release(reply.path)
            else:
                self._waiting.remove(reply)

    def cancelled(self, aloft: Sequence[Part]) -> list[Reply]:
        """Remove and return those whose callers have gone, those of rounds under way excepted."""
        flying = {reply for part in aloft for reply in part.replies}
        gone = [reply for reply in self if reply.future.cancelled() and reply not in flying]
        self.drop(gone)
        return gone

    def abandon(self) -> list[Reply]:
        """Remove and return all; no round is under way."""
        replies = list(self)
        self.drop(replies)
        return replies

    def __iter__(self) -> Iterator[Reply]:
        yield from (*self._waiting, *self._begun, *self._lives.values())

    def stats(self) -> dict[str, float]:
        """Counters, and how many replies are live and wait."""
        counts = {f"{name}_total": float(n) for name, n in self.counts.items()}
        return {**counts, "replies_live": float(self.n_live), "replies_waiting": float(self.n_waiting)}

    def histograms(self) -> dict[str, dict[int, int]]:
        """Sizes of steps and of chunks, as they were run: how many times each came."""
        return {"step_replies": dict(self._step_sizes), "chunk_size": dict(self._chunk_sizes)}

    def _keys(self, reply: Reply, n_rows: int) -> list[bytes]:
        """Of the pages of its first rows."""
        return self._pages.keys(reply.known(n_rows), reply.salt, self._block)

    def _awaits(self, reply: Reply) -> bool:
        """Whether the prompt of another, which is on its way, begins like this one, for longer than what is kept."""
        for other in self._begun:
            n = n_common(reply.keys, other.keys)
            if n * self._pages.page_size >= self._min_chunk and reply.keys[n - 1] not in self._pages:
                return True
        return False

    def _may_begin(self, reply: Reply) -> bool:
        """Whether there is a place for it, and there are pages and slots of states."""
        if len(self._begun) + len(self._lives) >= self.max_live or not self._has_pages(reply):
            return False
        return not self.n_states or self.n_states + STATES_A_REPLY + self._n_others <= self._pages.n_states

    def _has_pages(self, reply: Reply) -> bool:
        """Whether there are pages for its first rows, but for those that are held and those promised to others."""
        if self._crowded and (self._begun or self._lives):
            return False
        promised = sum(n for came, n in self.promised if came < reply.queued_at)
        own = -(-(reply.beginning.start + self._block) // self._pages.page_size)
        return not promised or promised + self.n_pages + own <= self._pages.n_pages

    def _begin(self, reply: Reply) -> None:
        """With what the index holds of its prompt."""
        reply.path = self._pages.match(reply.keys)
        if reply.n_cached is None:
            reply.n_cached = reply.path.length
        self._waiting.remove(reply)
        self._begun.append(reply)

    def _advance(self, part: Part, reply: Reply, room: int) -> int:
        """Bring what fits of its prompt in; how many rows that are. One whose prompt is in pages becomes live."""
        start, path = reply.beginning.start, reply.path
        if path.length == start:
            spare = self._pages.take_state() if self._pages.recurrent else -1
            self._starved |= spare is None
            if spare is not None:
                self._become_live(reply, spare)
            return 0
        n = min(start - path.length, room)
        if path.length + n < start:
            n = max(0, (path.length + n) // self.grain * self.grain - path.length)
        if n < (min(self._min_chunk, start - path.length) if part.encodings else 1):
            return 0
        state = self._pages.take_state() if self._pages.recurrent else -1
        found = None if state is None else self._pages.extend(path, n)
        if state is None or found is None:
            self._starved = True
            if state is not None and state >= 0:
                self._pages.drop_state(state)
            return 0
        slots, copy = found
        assert copy is None, "a page that others hold is full"
        part.encodings.append(self._encoding(reply, slots, -1 if state is None else state))
        return n

    def _encoding(self, reply: Reply, slots: IntArray, state: int) -> Encoding:
        """The rows of a reply's prompt that go to these slots."""
        path, n = reply.path, len(slots)
        n_context = path.length - n
        tree = Tree.of([Segment(reply.known(path.length)[n_context:], block=self._block)])
        held = np.array(path.pages[: -(-n_context // self._pages.page_size)], np.int32)
        leaves = np.array([(n - 1, state)] if state >= 0 else [], np.int32).reshape(-1, 2)
        came = path.state if n_context else -1
        return Encoding(
            reply, Unit(tree, held, n_context, slots, continues=n_context > 0, state=came, leaves=leaves), state
        )

    def _encoded(self, each: Encoding) -> None:
        reply, path = each.reply, each.reply.path
        reply.alone = False
        states = []
        if each.state >= 0:
            self._pages.drop_state(path.state) if path.state >= 0 else None
            path.state = each.state
            states = [(path.length, each.state)]
        self._pages.keep(reply.keys[: path.length // self._pages.page_size], path, states)
        if path.length == reply.beginning.start:
            self._become_live(reply, self._taken_state() if self._pages.recurrent else -1)

    def _become_live(self, reply: Reply, spare: int) -> None:
        """spare: a slot for the state behind its next step, -1 for none."""
        self._begun.remove(reply)
        place = reply.place = self.live.add(reply.beginning)
        self._tables.add(place, reply.path)
        self._lives[place] = reply
        if place >= len(self._own_sizes):
            self._own_sizes = grown(self._own_sizes, place + 1)
        self._own_sizes[place] = self.live.largest if reply.chunk_size == self._block else reply.chunk_size or 0
        if self._pages.recurrent:
            self._take_states(reply, spare)

    def _take_states(self, reply: Reply, spare: int) -> None:
        """A live reply has two slots: of its present state, and of the next."""
        place = reply.place
        while len(self._states) <= place:
            self._states, self._spare = (np.append(each, np.int32(-1)) for each in (self._states, self._spare))
        self._states[place], self._spare[place] = reply.path.state, spare

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
        return np.fromiter(self._lives, np.int32, len(self._lives))

    def _turned(self) -> IntArray:
        turn = self._turn % len(self._lives)
        return np.roll(self._places(), -turn) if turn else self._places()

    def _sized(self, places: IntArray, room: int, n_other: int) -> tuple[IntArray, IntArray]:
        """Those of the live replies that there is room for, and the largest chunk of each."""
        uncached, on_top, whole = self.live.uncached(places)
        sizes = np.maximum(self._own_sizes[places], self.live.least)
        free = self._own_sizes[places] == 0
        if free.any():
            others = n_other + int(self._rows(sizes, uncached, on_top, whole)[~free].sum())
            size = self._chosen(places[free], uncached[free], others)
            if not isinstance(self.sizes, Fixed) and len(places) > 1:
                size = min(size, max(room - int(on_top.sum()), 0) // len(places))
            sizes[free] = min(max(self.live.least, size), self.live.largest)
        rows = self._rows(sizes, uncached, on_top, whole)
        n = max(int(rows[0] <= room), int(np.searchsorted(np.cumsum(rows), room, side="right")))
        self._turn = self._turn + n if n < len(places) else 0
        return places[:n], sizes[:n]

    def _rows(self, sizes: IntArray, uncached: IntArray, on_top: IntArray, whole: IntArray) -> IntArray:
        """[N] that steps of these sizes have: those above a block are of whole blocks."""
        found: IntArray = np.where(sizes > self._block, whole, np.minimum(uncached, sizes + on_top))
        return found

    def _chosen(self, places: IntArray, uncached: IntArray, n_other: int) -> int:
        groups = self.live.group(places)
        demands = []
        for group in sorted(set(groups.tolist())):
            found, own = self._estimator(self.live.groups[group]), groups == group
            keys = int(self._tables.n_rows[places[own]].sum())
            demands.append(Demand(uncached[own], found.rates() if found.is_warm else None, keys))
        return self.sizes.choose(demands, n_other)

    def _estimator(self, unmasking: UnmaskPolicy) -> Commits:
        """Of those whose thresholds differ by less than a thousandth there is one; of the last used _ESTIMATORS."""
        alike = _alike(unmasking)
        found = self._commits.pop(alike) if alike in self._commits else Commits(max(2, self._block))
        self._commits[alike] = found
        if len(self._commits) > _ESTIMATORS:
            del self._commits[next(iter(self._commits))]
        return found

    def _give_up(self) -> None:
        """The newest live reply waits again, with what is known of it; or to be written again, since rows that are
        computed together are rounded otherwise, and with more known than at first they see more."""
        self.tell()
        reply = self._lives[next(reversed(self._lives))]
        if reply.repeats:
            reply.again()
        else:
            reply.beginning = self.live.beginning(reply.place)
        self._release(reply)
        self._wait(reply)
        self._crowded = True
        self.counts.update(preemptions=1)

    def _wait(self, reply: Reply) -> None:
        """Before all others, since it came before them. Gives up its pages."""
        self._pages.release(reply.path)
        reply.keys = self._keys(reply, reply.beginning.start)
        self._waiting.appendleft(reply)

    def _leave(self, reply: Reply) -> None:
        """A reply that has ended. Rows that are as in a pass over all of its tokens are kept for others."""
        if self._keeps and self.live.exact and not self._pages.recurrent:
            path = self._tables.path(reply.place)
            path.length = int(self._tables.n_rows[reply.place])
            self._pages.keep(self._keys(reply, path.length), path)
        self._release(reply)

    def _release(self, reply: Reply) -> None:
        """Of a live reply what it holds."""
        self.live.drop(reply.place)
        path = self._tables.drop(reply.place)
        if self._pages.recurrent:
            self._pages.drop_state(int(self._spare[reply.place]))
            path.state = int(self._states[reply.place])
        del self._lives[reply.place]
        reply.place, self._crowded = -1, False
        self._pages.release(path)


@lru_cache(_ESTIMATORS)
def _alike(unmasking: UnmaskPolicy) -> UnmaskPolicy:
    """Whose commits are taken for its own."""
    return replace(unmasking, threshold=round(unmasking.threshold, 3))
