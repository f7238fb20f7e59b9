"""What a page and a state slot hold is what the scheduler takes it for, whatever load, failures and small pools do.

The model here is a chain of hashes: a row is the hash of all tokens up to it, a recurrent state the hash of the last of
them, and what is read adds up all that a row sees. A row read before it was written, of another path or another tenant
changes the answer.
"""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from ramet.cache.pages import Pages
from ramet.engine.batch import Batch
from ramet.engine.job import Job
from ramet.engine.scheduler import Scheduler
from ramet.tree import WHOLE, IntArray, Limits, Read, Reads, Segment, Tree
from ramet.units import Unit

PAGE = 4
MODULUS = 1 << 24  # sums that float32 holds exactly


@dataclass(frozen=True)
class Row:
    """The hash of all tokens up to a row, its token, and what the row is worth to those who see it: the hash at the end
    of its block."""

    path: int
    token: int
    worth: int


def beginning(salt: str) -> int:
    return hash(("salt", salt))


def rows_of(tree: Tree, before: int) -> list[list[Row]]:
    """The rows of each segment; `before` is the hash of what comes before the roots."""
    found: list[list[Row]] = []
    for s, parent in enumerate(tree.parents.tolist()):
        path = found[parent][-1].path if parent >= 0 else before
        tokens = tree.tokens[tree.starts[s] : tree.starts[s] + tree.lengths[s]].tolist()
        paths = [path := hash((path, token)) for token in tokens]
        found.append([Row(p, t, 0) for p, t in zip(paths, tokens, strict=True)])
    return found


def worths(tree: Tree, rows: list[list[Row]], n_context: int) -> list[list[int]]:
    """What each row is worth: with blocks, what the last row of its block makes of it."""
    found = []
    for s, own in enumerate(rows):
        at, block = int(tree.origins[s]) + n_context, int(tree.blocks[s])
        ends = [min(len(own), (at + i) // block * block + block - at) - 1 for i in range(len(own))]
        found.append([own[end].path for end in ends])
    return found


def read(tree: Tree, worth: list[list[int]], context: int, n_context: int) -> Reads:
    """What each read sees, added up, and its column."""
    logits = []
    for i, (s, row) in enumerate(zip(tree.read_segments.tolist(), tree.read_rows.tolist(), strict=True)):
        at, block = int(tree.origins[s]) + n_context, int(tree.blocks[s])
        n_seen = min(len(worth[s]), (at + row) // block * block + block - at)
        total, above = context + sum(worth[s][:n_seen]), int(tree.parents[s])
        while above >= 0:
            total, above = total + sum(worth[above]), int(tree.parents[above])
        logits += [(total + c) % MODULUS for c in tree.columns[tree.offsets[i] : tree.offsets[i + 1]].tolist()]
    return Reads(np.array(logits, np.float32), np.zeros(len(tree.read_rows), np.float32), tree.offsets)


def alone(job: Job) -> list[float]:
    """What the job reads where nothing is shared, cut or resumed."""
    worth = worths(job.tree, rows_of(job.tree, beginning(job.salt)), 0)
    logits: list[float] = read(job.tree, worth, 0, 0).logits.tolist()
    return logits


@dataclass
class Device:
    """Pages and slots by what they hold; None: never written."""

    n_pages: int
    n_states: int
    grain: int
    rows: list[Row | None] = field(init=False)
    states: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.rows, self.states = [None] * (self.n_pages * PAGE), [None] * self.n_states

    def run(self, batch: Batch) -> list[Reads]:
        for source, target in batch.copies:
            self.rows[target * PAGE : target * PAGE + PAGE] = self.rows[source * PAGE : source * PAGE + PAGE]
        self._check_apart(batch)
        found, kept, states = [], {}, {}
        for unit, shares in zip(batch.units, batch.parts, strict=True):
            (salt,) = {share.job.salt for share in shares}
            before, context = self._context(unit, beginning(salt))
            rows = rows_of(unit.tree, before)
            worth = worths(unit.tree, rows, unit.n_context)
            flat = [row for own in rows for row in own]
            flat_worth = [w for own in worth for w in own]
            for i, slot in enumerate(unit.slots.tolist()):
                kept[slot] = Row(flat[i].path, flat[i].token, flat_worth[i])
            for row, slot in unit.leaves.tolist():
                self._check_leaf(unit, row)
                states[slot] = flat[row].path
            found.append(read(unit.tree, worth, context, unit.n_context))
        for slot, row in kept.items():
            self.rows[slot] = row
        for slot, state in states.items():
            self.states[slot] = state
        return found

    def spoil(self, batch: Batch) -> None:
        """A round that fails may have left anything where it was to write."""
        for unit in batch.units:
            for slot in unit.slots.tolist():
                self.rows[slot] = None
            for _, slot in unit.leaves.tolist():
                self.states[slot] = None

    def _context(self, unit: Unit, before: int) -> tuple[int, int]:
        """The hash behind a unit's context, and what its rows are worth together."""
        assert len(unit.context) == -(-unit.n_context // PAGE)
        total = 0
        for i in range(unit.n_context):
            row = self.rows[int(unit.context[i // PAGE]) * PAGE + i % PAGE]
            assert row is not None, "read before it was written"
            assert row.path == hash((before, row.token)), "another path's"
            before, total = row.path, total + row.worth
        if not self.n_states or not unit.n_context:
            assert unit.state == -1
        else:
            assert self.states[unit.state] == before
        return before, total

    def _check_apart(self, batch: Batch) -> None:
        """Nothing is written twice in a round, nor written and read."""
        written = Counter(slot for unit in batch.units for slot in unit.slots.tolist())
        states = Counter(slot for unit in batch.units for _, slot in unit.leaves.tolist())
        assert max([*written.values(), *states.values()], default=1) == 1
        for unit in batch.units:
            assert unit.state not in states
            seen = (int(unit.context[i // PAGE]) * PAGE + i % PAGE for i in range(unit.n_context))
            assert not any(slot in written for slot in seen)

    def _check_leaf(self, unit: Unit, row: int) -> None:
        """States are kept at multiples of the grain from the segment's start, or at its end."""
        first = int(unit.forks[-1]) if unit.continues else unit.n_context
        length = int(unit.tree.lengths[0])
        assert row + 1 == length or (unit.n_context + row + 1 - first) % self.grain == 0


@dataclass
class Below:
    """A `prefix_index.Lower` which holds a few entries, and whose files are damaged now and then."""

    device: Device
    rng: np.random.Generator
    max_entries: int
    entries: dict[bytes, list[Row | None] | int] = field(default_factory=dict)
    n_fetched: int = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self.entries

    def spill_page(self, key: bytes, page: int) -> None:
        rows = self.device.rows[page * PAGE : page * PAGE + PAGE]
        assert None not in rows
        self._put(key, rows)

    def spill_state(self, key: bytes, slot: int) -> None:
        state = self.device.states[slot]
        assert state is not None
        self._put(key, state)

    def fetch_page(self, key: bytes, page: int) -> bool:
        rows = self._get(key)
        if isinstance(rows, list):
            self.device.rows[page * PAGE : page * PAGE + PAGE] = rows
        return rows is not None

    def fetch_state(self, key: bytes, slot: int) -> bool:
        state = self._get(key)
        if isinstance(state, int):
            self.device.states[slot] = state
        return state is not None

    def check(self, key: bytes) -> None:
        pass

    def has_lost(self, key: bytes) -> bool:
        return False

    def _put(self, key: bytes, entry: list[Row | None] | int) -> None:
        assert self.entries.get(key, entry) == entry, "one key, two contents"
        self.entries[key] = entry
        if len(self.entries) > self.max_entries:
            del self.entries[list(self.entries)[int(self.rng.integers(len(self.entries)))]]

    def _get(self, key: bytes) -> list[Row | None] | int | None:
        entry = self.entries.get(key)
        if self.rng.random() < 0.05:
            self.entries.pop(key, None)
            return None
        self.n_fetched += entry is not None
        return entry


@dataclass
class Load:
    """Random jobs of a few trunks that grow and part, through a scheduler, as the engine does it."""

    seed: int
    rng: np.random.Generator = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    n_done: int = 0
    n_joined: int = 0
    flights: deque[tuple[Batch, list[Reads] | None]] = field(default_factory=deque)
    _trunk: tuple[IntArray, int] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = np.random.default_rng(self.seed)
        self.depth = 1 + self.seed % 2  # rounds under way at once
        self.limit = int(rng.choice([12, 20, 32, 64]))
        recurrent = self.seed % 3 > 0
        self.grain = (8 if self.seed % 3 == 2 else PAGE) if recurrent else 1
        self.device = Device(int(rng.integers(26, 60)), int(rng.integers(6, 16)) if recurrent else 0, self.grain)
        self.below = Below(self.device, rng, int(rng.integers(5, 80))) if rng.random() < 0.6 else None
        self.pages = Pages(self.device.n_pages, PAGE, self.device.n_states, self.below)
        self.scheduler = Scheduler(self.pages, self.limit, self.grain)
        self.texts = [rng.integers(0, 5, 72).astype(np.int32) for _ in range(3)]
        self._trunk = self._new_trunk()

    def submit(self) -> None:
        job = self._job()
        if self._fits(job.tree, two_steps=job.two_steps):
            self.jobs.append(job)
            self.scheduler.add(job)

    def _fits(self, tree: Tree, *, two_steps: bool) -> bool:
        is_long = tree.n_tokens > self.limit
        if (is_long or two_steps) and self.scheduler.n_pages_for(tree.max_position) > self.pages.n_pages:
            return False
        return not is_long or int(np.minimum(tree.blocks, tree.lengths).max()) <= self.limit // 2

    def cancel(self) -> None:
        if self.jobs:
            self.jobs[int(self.rng.integers(len(self.jobs)))].future.cancel()

    def step(self, *, fails: bool = False) -> None:
        """A turn of the engine's loop. One that fails does so when its results are due."""
        self.scheduler.cancelled()
        if not len(self.scheduler):
            return
        batch = self.scheduler.next()
        assert batch.units or self.flights, "no work for those that wait"
        if batch.units:
            assert sum(unit.tree.n_tokens for unit in batch.units) == batch.n_tokens <= self.limit
            self.n_joined += sum(len(shares) - 1 for shares in batch.parts)
            self.flights.append((batch, None if fails else self.device.run(batch)))
            if fails:
                self.device.spoil(batch)
        if len(self.flights) == self.depth or not batch.units:
            self._land(*self.flights.popleft())

    def _land(self, batch: Batch, results: list[Reads] | None) -> None:
        if results is None:
            self._fail(batch)
            return
        for job in self.scheduler.commit(batch, results):
            assert job.reads.logits.tolist() == alone(job)
            assert job.n_cached % max(self.grain, PAGE) == 0
            if not self._goes_on(job):
                self.n_done += 1
                self.jobs.remove(job)
        self._check_index()

    def _goes_on(self, job: Job) -> bool:
        """With the next tree of its course, below a trunk that may have grown."""
        if not job.is_long or self.rng.random() < 0.2:
            return False
        more = self.rng.integers(0, 5, int(self.rng.choice([0, 0, 5]))).astype(np.int32)
        trunk = np.concatenate([job.tree.tokens[: job.tree.lengths[0]], more])
        tree = self._canvases(trunk)
        if not self._fits(tree, two_steps=False):
            return False
        job.n_resumed = job.n_cached
        job.proceed(tree, len(trunk), ())
        self.scheduler.add(job)
        return True

    def _canvases(self, trunk: IntArray) -> Tree:
        """Below a trunk, some of them behind a question."""
        segments = [Segment(trunk)]
        for _ in range(int(self.rng.integers(1, 4))):
            above = 0
            if self.rng.random() < 0.5:
                segments.append(Segment(self.rng.integers(0, 5, int(self.rng.integers(1, 9))).astype(np.int32), 0))
                above = len(segments) - 1
            tokens = self.rng.integers(0, 5, int(self.rng.integers(1, 7))).astype(np.int32)
            segments.append(Segment(tokens, above, WHOLE, [Read([1], 0)]))
        return Tree.of(segments)

    def _check_index(self) -> None:
        """What is kept was written; a checkpoint is the state behind the last row of its page."""
        for node in self.pages.index:
            rows = self.device.rows[node.page * PAGE : node.page * PAGE + PAGE]
            last = rows[-1]
            assert None not in rows
            assert last is not None
            assert node.state < 0 or self.device.states[node.state] == last.path

    def _fail(self, batch: Batch) -> None:
        jobs = batch.jobs
        self.scheduler.drop(jobs, batch)
        if len(jobs) == 1:
            self.jobs.remove(jobs[0])
            return
        for job in jobs:
            job.restart(alone=True)
            self.scheduler.add(job)

    def _job(self) -> Job:
        rng = self.rng
        if rng.random() < 0.4:
            self._trunk = self._new_trunk()
        trunk, n_keep = self._trunk
        if self.grain == 1 and rng.random() < 0.4:
            n_trees = int(rng.choice([1, 5]))
            course = SimpleNamespace(limits=Limits(n_trees, 0, 0)) if rng.random() < 0.7 else None
            salt, two_steps = str(rng.integers(2)), rng.random() < 0.5
            tree = self._canvases(trunk)
            return Job(tree, Future(), n_keep, (), salt, course, two_steps=bool(two_steps))  # type: ignore[arg-type]
        block = int(rng.choice([1, 1, 1, 1, 3, 8, WHOLE])) if self.grain == 1 else 1
        segments = [Segment(trunk, block=block, reads=self._reads(len(trunk)) if rng.random() < 0.2 else [])]
        for i in range(int(rng.integers(0, 5))):
            parent = int(rng.choice([-1, *[j for j in range(i + 1) if rng.random() < 0.7][:2]]))
            tokens = rng.integers(0, 5, int(rng.integers(1, 40 if rng.random() < 0.2 else 9))).astype(np.int32)
            segments.append(Segment(tokens, parent, int(rng.choice([1, block])), self._reads(len(tokens))))
        if not any(s.reads for s in segments):
            segments[0] = Segment(trunk, block=block, reads=self._reads(len(trunk)))
        tree = Tree.of(segments)
        marks: tuple[int, ...] = ()
        if self.pages.recurrent:
            others = rng.integers(0, n_keep + 1, 2) // self.grain * self.grain
            marks = tuple(sorted({n_keep, *others.tolist()} - {0}))
        return Job(tree, Future(), n_keep, marks, str(rng.integers(2)))

    def _new_trunk(self) -> tuple[IntArray, int]:
        """Tokens, and how many of them are kept."""
        rng = self.rng
        trunk = self.texts[int(rng.integers(3))][: int(rng.integers(1, 73))]
        if rng.random() < 0.3:
            trunk = np.concatenate([trunk, rng.integers(0, 5, 3).astype(np.int32)])
        n_keep = int(rng.integers(0, len(trunk) + 1)) if rng.random() < 0.3 else len(trunk)
        return trunk, n_keep // self.grain * self.grain

    def _reads(self, n: int) -> list[Read]:
        return [Read([int(self.rng.integers(5))], int(self.rng.integers(n))) for _ in range(int(self.rng.integers(3)))]


@pytest.mark.parametrize("seed", range(18))
def test_every_row_and_state_is_what_it_is_taken_for(seed: int) -> None:
    load = Load(seed)
    for _ in range(120):
        kind = load.rng.random()
        if kind < 0.45:
            for _ in range(int(load.rng.integers(1, 4))):
                load.submit()
        elif kind < 0.5:
            load.cancel()
        else:
            load.step(fails=load.rng.random() < 0.05)
    while len(load.scheduler):
        load.step()
    pages = load.pages
    assert load.n_done > 30
    assert pages.hits > 0
    assert pages.n_free + pages.n_indexed == pages.n_pages
    assert pages.n_free_states + pages.n_checkpoints == pages.n_states
    pages.index.clear()
    assert (pages.n_free, pages.n_free_states) == (pages.n_pages, pages.n_states)
