"""Admission: which jobs may begin, by pages, slots of states, and trunks that others are computing."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from ramet.cache.pages import Pages
from ramet.engine.batch import Batch
from ramet.engine.cutting import leads
from ramet.engine.decoding import Decoding
from ramet.engine.job import STATES_A_JOB, Job
from ramet.engine.jobs import Jobs
from ramet.engine.packing import Packer
from ramet.tree import MAX_ANCESTORS

STATES_A_REPLY = 3  # before a piece of its prompt and behind it, or before a step and behind it; and one that is kept


class Admission:
    """A tree that is cut is promised the pages that it may need; it begins when there are so many. A reply begins with
    what its prompt needs, and its running replies take pages as they grow: when none are left, the newest gives up its
    own. Nobody gets the pages that were promised to those who came before.

    n_other_states: slots of recurrent states that replies leave to others.
    """

    def __init__(self, jobs: Jobs, packer: Packer, decoding: Decoding | None, n_other_states: int = 0) -> None:
        self._jobs, self._packer, self._decoding = jobs, packer, decoding
        self._pages: Pages = packer.pages
        self._n_others = n_other_states
        self.is_crowded = False  # pages ran out for replies, and none has ended since
        self.stuck: set[Job] = set()  # prompts that found no page, or slot, in this round: no tree waits for them
        self._promised: list[tuple[float, int]] = []  # (who came before that is promised them, pages)
        self._ahead: list[Job] = []  # trees whose trunks are still due
        self._came: dict[int, dict[bytes, float]] = {}  # of these, by a page's number and key: when the first came

    def look(self) -> None:
        """Note, as a round is made, what is promised, and which trunks are still due."""
        self.stuck.clear()
        self._promised, self._ahead, self._came = [], [], {}
        if not self._n_replies and not self._jobs.waiting_replies:
            return
        self._promised = self._promises()
        if self._jobs.waiting_replies:
            trees = (job for job in (*self._jobs.running, *self._jobs.waiting) if job.keys)
            self._ahead = [job for job in trees if not (job.tasks and not leads(job.tasks[0]))]

    def n_pages_for(self, max_position: int) -> int:
        """Pages that a tree may need at once when it is cut: its longest path, and a copy at each fork."""
        return -(-max_position // self._pages.page_size) + MAX_ANCESTORS

    def is_blocked(self, job: Job) -> bool:
        """Whether a tree that is cut has to wait for pages or states, which others hold or were promised."""
        if self._replies_lack_pages_since() < job.queued_at:
            return True
        promised = [self.n_pages_for(other.max_position) for other in self._jobs.running if self._packer.is_cut(other)]
        if self._pages.recurrent and (len(promised) + 1) * STATES_A_JOB + self._reply_states > self._pages.n_states:
            return True
        return self._reply_pages + sum(promised) + self.n_pages_for(job.max_position) > self._pages.n_pages

    def may_begin(self, job: Job) -> bool:
        """Whether there is a place for a reply, and there are pages and slots of states."""
        assert self._decoding is not None
        if self._n_replies >= self._decoding.max_running or not self._has_pages(job):
            return False
        held = self._reply_states
        return not held or held + STATES_A_REPLY + self._n_others <= self._pages.n_states

    def is_crowded_for(self, job: Job) -> bool:
        """Whether a read had better begin when another has ended: not all of those under way have room in this round,
        or their pages and its own are more than there are, so that each would drive out another's."""
        others = [other for other in self._jobs.running if other.is_long]
        n_pages = sum(self.n_pages_for(each.max_position) for each in (*others, job))
        return bool(self._jobs.between) or (bool(others) and n_pages > self._pages.n_pages)

    def awaits(self, job: Job, batch: Batch) -> bool:
        """Whether others are computing more of this one's trunk than is kept: in pieces, for a reply, or, where this
        one is a reply, in any way, or are to begin before it."""
        if not (batch.leading or batch.whole or self._jobs.in_flight or self._jobs.prompts or self._ahead):
            return False
        n_kept = bisect_left(range(len(job.keys)), True, key=lambda i: job.keys[i] not in self._pages.index)
        at = max(n_kept, -(-self._packer.min_piece // self._pages.page_size) - 1)
        if at >= len(job.keys):
            return False
        key = [job.keys[at]]  # of the first page that is worth to wait for: it says all that comes before it
        if any(other.keys[at : at + 1] == key for other in self._leading(job, batch)):
            return True
        return job.reply is not None and self._first_came(at).get(key[0], math.inf) < job.queued_at

    def _leading(self, job: Job, batch: Batch) -> Iterator[Job]:
        for each in (batch, *self._jobs.in_flight):
            yield from (other for other in each.leading if other not in self.stuck)
            if job.reply is not None:
                yield from each.whole
        yield from (other for other in self._jobs.prompts if job.reply is not None or other not in self.stuck)

    def _first_came(self, at: int) -> dict[bytes, float]:
        """Of the trees whose trunks are still due, by the key of a page, when the first came."""
        if at not in self._came:
            found = self._came[at] = {}
            for job in self._ahead:
                if at < len(job.keys):
                    found[job.keys[at]] = min(found.get(job.keys[at], math.inf), job.queued_at)
        return self._came[at]

    def _has_pages(self, job: Job) -> bool:
        """Whether there are pages for a reply's first rows, but for those that are held and those promised to trees
        that came before it."""
        assert job.reply is not None
        assert self._decoding is not None
        if self.is_crowded and self._n_replies:
            return False
        promised = sum(n for came, n in self._promised if came < job.queued_at)
        own = -(-(job.reply.beginning.start + self._decoding.block) // self._pages.page_size)
        return not promised or promised + self._reply_pages + own <= self._pages.n_pages

    def _promises(self) -> list[tuple[float, int]]:
        """Pages that trees which are cut may need, those under way and the first of those that wait, each with the time
        from which on nobody else gets them."""
        due = next(filter(self._packer.is_cut, chain(self._jobs.between, self._jobs.waiting)), None)
        cut = [job for job in self._jobs.running if self._packer.is_cut(job)]
        running = [(0.0, self.n_pages_for(job.max_position)) for job in cut]
        return running if due is None else [*running, (due.queued_at, self.n_pages_for(due.max_position))]

    def _replies_lack_pages_since(self) -> float:
        """When the first came of the replies that wait, where it lacks pages."""
        first = next(iter(self._jobs.waiting_replies), None)
        return math.inf if first is None or self._has_pages(first) else first.queued_at

    @property
    def _n_replies(self) -> int:
        """Replies that have begun."""
        return len(self._jobs.prompts) + (len(self._decoding) if self._decoding else 0)

    @property
    def _reply_pages(self) -> int:
        """Pages that replies hold."""
        n_prompts = sum(len(task.path.pages) for job in self._jobs.prompts for task in job.tasks or [])
        return n_prompts + (self._decoding.n_pages if self._decoding else 0)

    @property
    def _reply_states(self) -> int:
        """Slots of recurrent states that replies hold, or may need."""
        return STATES_A_REPLY * self._n_replies if self._pages.recurrent else 0
