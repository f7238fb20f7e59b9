"""Page and state bookkeeping without tensors: who holds what, and what is kept of which tokens.

A page is `page_size` consecutive rows of one path through a tree; a recurrent state is what a model with recurrent
layers has folded a path's rows into. Both are counted by reference; a Path owns a reference to each of its pages and
to its state. The prefix index keeps full pages, and states at the ends of some of them (checkpoints), found again by
the exact tokens from the path's start. What is used least recently goes first when places run out: to the level
below, if there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Protocol

import numpy as np

from ramet.cache.pool import Pool
from ramet.tree import IntArray

KEY_BYTES = 20


@dataclass(slots=True, eq=False)
class Path:
    """The pages of positions [0, length) of one path, and the slot of the recurrent state behind them (-1: none).
    Holds a reference to each until released."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    state: int = -1


class Lower(Protocol):
    """Where pages and states go that must leave the device, and come back from. Keys are KEY_BYTES long."""

    def __contains__(self, key: bytes) -> bool: ...

    def spill_page(self, key: bytes, page: int) -> None: ...

    def spill_state(self, key: bytes, slot: int) -> None: ...

    def fetch_page(self, key: bytes, page: int) -> bool:
        """Fill a page; False, and nothing changed, where the entry is gone or damaged."""

    def fetch_state(self, key: bytes, slot: int) -> bool:
        """Fill a slot, as `fetch_page`."""

    def check(self, key: bytes) -> None:
        """Read an entry, and leave it there unless it is damaged."""

    def has_lost(self, key: bytes) -> bool:
        """Whether an entry was there and could not be had: it is to be spilled as soon as it is computed again."""


@dataclass(slots=True, eq=False)
class _Node:
    """A full page in the index, and the checkpoint at its end (-1: none). It stands for itself: its key says all that
    comes before it."""

    key: bytes
    page: int
    state: int = -1


class Pages:
    """All pages of a store, and its `n_states` slots of recurrent states (0: the model has none).

    Not thread-safe: the engine's thread alone uses it.
    """

    def __init__(self, n_pages: int, page_size: int, n_states: int = 0, lower: Lower | None = None) -> None:
        self.page_size = page_size
        self.n_pages, self.n_states = n_pages, n_states
        self.hits = self.misses = self.evicted = self.evicted_states = 0
        self._pages, self._slots = Pool(n_pages), Pool(n_states)
        self._index: OrderedDict[bytes, _Node] = OrderedDict()  # least recently used first
        # The nodes with a state, likewise: a state is used when it is continued, not when a path passes it.
        self._checkpoints: OrderedDict[bytes, _Node] = OrderedDict()
        self._lower = lower

    @property
    def recurrent(self) -> bool:
        return self.n_states > 0

    @property
    def n_free(self) -> int:
        return self._pages.n_free

    @property
    def n_free_states(self) -> int:
        return self._slots.n_free

    @property
    def n_indexed(self) -> int:
        """Pages that the prefix index holds."""
        return len(self._index)

    @property
    def n_checkpoints(self) -> int:
        """States that the prefix index holds."""
        return len(self._checkpoints)

    def keys(self, tokens: IntArray, salt: str = "", block: int = 1) -> list[bytes]:
        """A key for each full page: a digest of all tokens up to its end, of the salt, and of how many rows see each
        other: the same tokens leave other rows. 4 ms for 65536 tokens."""
        secret = blake2b(f"{block} {salt}".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
        digest, keys = blake2b(digest_size=KEY_BYTES, key=secret), list[bytes]()
        data, n_bytes = np.ascontiguousarray(tokens, "<i4").tobytes(), 4 * self.page_size
        for begin in range(0, len(data) - n_bytes + 1, n_bytes):
            digest.update(data[begin : begin + n_bytes])
            keys.append(digest.digest())
        return keys

    def __contains__(self, key: bytes) -> bool:
        """Whether a page is kept, on the device or below."""
        return key in self._index or (self._lower is not None and key in self._lower)

    def match(self, keys: Sequence[bytes]) -> Path:
        """The longest beginning of the pages of these keys that is kept and can be continued; the path holds it. A
        model with recurrent layers continues at checkpoints alone."""
        reach = self._reach(keys)
        while self.recurrent and reach and not self._has_state(keys[reach - 1]):
            reach -= 1
        found, path = self._bring(keys[:reach]), Path()
        if self._has_lost(keys[len(found) : reach][:1]):
            self._check(keys[len(found) :])
        for end in range(len(found), 0, -1):
            if not self.recurrent or (self._has_state(keys[end - 1]) and self._bring_state(found[end - 1], path)):
                path.length, path.pages = end * self.page_size, [node.page for node in found[:end]]
                break
        self._pages.drop(node.page for node in found[len(path.pages) :])
        self._touch(found[: len(path.pages)])
        self.hits += path.length
        self.misses += len(keys) * self.page_size - path.length
        return path

    def reach(self, keys: Sequence[bytes]) -> int:
        """Rows of the first of these pages, as far as the index has them on the device."""
        return self.page_size * _n_leading(keys, self._index.__contains__)

    def keep(self, keys: Sequence[bytes], path: Path, states: Sequence[tuple[int, int]] = ()) -> None:
        """Put the first pages of `path`, which are full and have these keys, into the index, and the checkpoints
        `states`: positions and slots, of which those at an end of a page stay."""
        assert len(keys) <= path.length // self.page_size
        found: list[_Node] = []
        for key, page in zip(keys, path.pages, strict=False):
            node = self._index.get(key)
            if node is None:
                self._pages.hold([page])
                node = self._add(key, page)
                if self._lower is not None and self._lower.has_lost(key):
                    self._lower.spill_page(key, page)
            found.append(node)
        for position, slot in states:
            at, rest = divmod(position, self.page_size)
            if rest == 0 and 0 < at <= len(found) and found[at - 1].state < 0:
                self._checkpoint(found[at - 1], self.hold_state(slot))
                if self._lower is not None and self._lower.has_lost(_state_key(found[at - 1].key)):
                    self._lower.spill_state(_state_key(found[at - 1].key), slot)
        self._touch(found)

    def extend(self, path: Path, n_rows: int) -> tuple[IntArray, tuple[int, int] | None] | None:
        """Make room for n_rows more rows: their slots, and the page copy to make first, if any.

        A last page that others hold too is replaced by a copy. None, and nothing changed, when
        pages run out.
        """
        size = self.page_size
        used = path.length % size
        shared = used > 0 and self._pages.shared(path.pages[-1])
        n_new = -(-(path.length + n_rows) // size) - len(path.pages) + shared
        taken = self._take(n_new)
        if taken is None:
            return None
        copy = None
        if shared:
            copy = (path.pages[-1], taken[0])
            self._pages.drop([path.pages.pop()])
        path.pages.extend(taken)
        rows = np.arange(path.length, path.length + n_rows)
        path.length += n_rows
        slots = np.array(path.pages, np.int32)[rows // size] * size + rows % size
        return slots.astype(np.int32), copy

    def append(self, path: Path, n_pages: int) -> bool:
        """Give a path further pages, behind its rows. False, and nothing changed, when pages run out."""
        taken = self._take(n_pages)
        path.pages.extend(taken or [])
        return taken is not None

    def take_state(self) -> int | None:
        """A slot, held once, for a state to be kept; None when all are in use."""
        while not self._slots.n_free:
            oldest = next((node for node in self._checkpoints.values() if not self._slots.shared(node.state)), None)
            if oldest is None:
                return None
            self._forget_state(oldest, spill=True)
            self.evicted_states += 1
        return self._slots.take()

    def hold_state(self, slot: int) -> int:
        """One more reference to a slot, which is returned."""
        self._slots.hold([slot])
        return slot

    def shares_state(self, slot: int) -> bool:
        """Whether more than one holds a slot."""
        return self._slots.shared(slot)

    def drop_state(self, slot: int) -> None:
        """Give back a reference to a slot."""
        self._slots.drop([slot])

    def fork(self, path: Path, length: int | None = None, *, state: int = -1) -> Path:
        """Another path of the same pages. Of the first `length` rows where given, and then without the state behind;
        or with another `state`, whose reference it takes over."""
        length = path.length if length is None else length
        assert length <= path.length
        pages = path.pages[: -(-length // self.page_size)]
        if state < 0 and length == path.length and path.state >= 0:
            state = self.hold_state(path.state)
        self._pages.hold(pages)
        return Path(pages, length, state)

    def release(self, path: Path) -> None:
        """Give back a path's references; it is empty afterwards."""
        self._pages.drop(path.pages)
        self._slots.drop([path.state] if path.state >= 0 else [])
        path.pages, path.length, path.state = [], 0, -1

    def spill(self) -> bool:
        """Give the least recently used page to the level below. False where the index is empty."""
        oldest = next(iter(self._index.values()), None)
        if oldest is not None:
            self._forget(oldest, spill=True)
        return oldest is not None

    def clear(self) -> None:
        """Empty the index."""
        for node in list(self._index.values()):
            self._forget(node, spill=False)

    def _has_state(self, key: bytes) -> bool:
        node = self._index.get(key)
        return (node is not None and node.state >= 0) or (self._lower is not None and _state_key(key) in self._lower)

    def _reach(self, keys: Sequence[bytes]) -> int:
        """How many of these consecutive keys are kept, on the device or below."""
        here = _n_leading(keys, self._index.__contains__)
        return here if self._lower is None else here + _n_leading(keys[here:], self.__contains__)

    def _bring(self, keys: Sequence[bytes]) -> list[_Node]:
        """The nodes of consecutive keys, held; fetched from below where they are not here. Ends at the first that
        cannot be had."""
        found = [self._index[key] for key in takewhile(self._index.__contains__, keys)]
        self._pages.hold([node.page for node in found])  # at once: nothing may leave while others come
        for key in keys[len(found) :]:
            node = self._index.get(key)
            if node is not None:
                self._pages.hold([node.page])
            else:
                node = self._fetch(key)
            if node is None:
                break
            found.append(node)
        return found

    def _fetch(self, key: bytes) -> _Node | None:
        """A page from below, in the index and held."""
        taken = self._take(1)
        if taken is None or self._lower is None:
            return None
        if not self._lower.fetch_page(key, taken[0]):
            self._pages.drop(taken)
            return None
        self._pages.hold(taken)
        return self._add(key, taken[0])

    def _bring_state(self, node: _Node, path: Path) -> bool:
        """Let `path` hold the checkpoint at a node, fetched from below if need be."""
        if node.state < 0:
            slot = self.take_state()
            if slot is None or self._lower is None:
                return False
            if not self._lower.fetch_state(_state_key(node.key), slot):
                self._slots.drop([slot])
                return False
            self._checkpoint(node, slot)
        self._checkpoints.move_to_end(node.key)
        self._slots.hold([node.state])
        path.state = node.state
        return True

    def _has_lost(self, keys: Sequence[bytes]) -> bool:
        return self._lower is not None and any(map(self._lower.has_lost, keys))

    def _check(self, keys: Sequence[bytes]) -> None:
        """What lies below of pages that are computed again, since one before them was lost: the others that are lost
        are found now, all of them, and not one each time."""
        assert self._lower is not None
        for below in (*keys, *map(_state_key, keys)):
            if below in self._lower:
                self._lower.check(below)

    def _add(self, key: bytes, page: int) -> _Node:
        """A new node, which takes over a reference to its page."""
        node = self._index[key] = _Node(key, page)
        return node

    def _checkpoint(self, node: _Node, slot: int) -> None:
        """Give a node a state; it takes over a reference to its slot."""
        node.state = slot
        self._checkpoints[node.key] = node

    def _take(self, n: int) -> list[int] | None:
        if n > self._pages.n_free:
            self._evict(n - self._pages.n_free)
        if n > self._pages.n_free:
            return None
        return [self._pages.take() for _ in range(n)]

    def _touch(self, nodes: Sequence[_Node]) -> None:
        """Nodes of one path, first page first, are the most recently used: the last page least so of them."""
        move = self._index.move_to_end
        for node in reversed(nodes):
            move(node.key)

    def _evict(self, n: int) -> None:
        """Forget up to n pages that nobody holds, the least recently used first. A page is always touched after
        those that follow it, so they come first."""
        unheld = (node for node in self._index.values() if not self._pages.shared(node.page))
        for node in list(islice(unheld, n)):
            self.evicted += 1
            self.evicted_states += node.state >= 0
            self._forget(node, spill=True)

    def _forget(self, node: _Node, *, spill: bool) -> None:
        if node.state >= 0:
            self._forget_state(node, spill=spill)
        if spill and self._lower is not None:
            self._lower.spill_page(node.key, node.page)
        del self._index[node.key]
        self._pages.drop([node.page])

    def _forget_state(self, node: _Node, *, spill: bool) -> None:
        if spill and self._lower is not None:
            self._lower.spill_state(_state_key(node.key), node.state)
        del self._checkpoints[node.key]
        self._slots.drop([node.state])
        node.state = -1


def _n_leading(keys: Sequence[bytes], is_known: Callable[[bytes], bool]) -> int:
    """How many of the first keys are known, without a gap."""
    return len(list(takewhile(is_known, keys)))


def _state_key(key: bytes) -> bytes:
    """Under which a page's checkpoint lies below."""
    return blake2b(key, digest_size=KEY_BYTES, person=b"state").digest()
