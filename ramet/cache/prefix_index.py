"""The prefix index: which full pages and states are kept of which tokens, and which of them leave first.

It finds pages by the exact tokens from a path's start: a page's key is a digest of all tokens up to its end. Some pages
have a checkpoint, the recurrent state behind their last row. Where pages or slots run out, what nobody else holds and
was used least recently goes, to the level below if there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Protocol

from ramet.cache.pool import Pool

KEY_BYTES = 20


class Lower(Protocol):
    """Where pages and states go that must leave the device, and come back from. Keys are KEY_BYTES long."""

    def __contains__(self, key: bytes) -> bool: ...

    def spill_page(self, key: bytes, page: int) -> None: ...

    def spill_state(self, key: bytes, slot: int) -> None: ...

    def fetch_page(self, key: bytes, page: int) -> bool:
        """Fill a page. Returns False, and changes nothing, where the entry is gone or damaged."""

    def fetch_state(self, key: bytes, slot: int) -> bool:
        """Fill a slot, as `fetch_page` fills a page."""

    def check(self, key: bytes) -> None:
        """Read an entry, and leave it there unless it is damaged."""

    def has_lost(self, key: bytes) -> bool:
        """Whether an entry was there and could not be read: it is spilled again as soon as it is computed again."""


@dataclass(slots=True, eq=False)
class Node:
    """A full page, and the slot of the checkpoint at its end (-1: none). The key covers all tokens before it, too."""

    key: bytes
    page: int
    state: int = -1


class PrefixIndex:
    """Keeps pages and states by key, with a reference to each in the pools `pages` and `slots`.

    A model without recurrent layers has an empty pool of slots. `evicted` and `evicted_states` count what had to leave.
    """

    def __init__(self, pages: Pool, slots: Pool, lower: Lower | None = None) -> None:
        self.evicted = self.evicted_states = 0
        self._pages = pages
        self._slots = slots
        self._recurrent = len(slots) > 0
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()  # least recently used first
        # The nodes with a state, likewise: a state is used when it is continued, not when a path passes it.
        self._checkpoints: OrderedDict[bytes, Node] = OrderedDict()
        self._lower = lower

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """The nodes on the device, the least recently used first."""
        return iter(self._nodes.values())

    def __contains__(self, key: bytes) -> bool:
        """Whether a page is kept, on the device or below."""
        return key in self._nodes or (self._lower is not None and key in self._lower)

    @property
    def n_checkpoints(self) -> int:
        return len(self._checkpoints)

    def n_on_device(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys have their pages on the device, without a gap."""
        return _n_leading(keys, self._nodes.__contains__)

    def match(self, keys: Sequence[bytes]) -> tuple[list[int], int]:
        """The pages of the longest beginning of these keys that is kept and can be continued, and the slot of the state
        behind them (-1: none). The caller gets a reference to each. Recurrent layers continue at checkpoints alone."""
        reach = self._reach(keys)
        while self._recurrent and reach and not self._has_state(keys[reach - 1]):
            reach -= 1
        found = self._bring(keys[:reach])
        if self._has_lost(keys[len(found) : reach][:1]):
            self._check(keys[len(found) :])
        end, state = self._last_to_continue(found)
        self._pages.drop(node.page for node in found[end:])
        self._touch(found[:end])
        return [node.page for node in found[:end]], state

    def keep(self, keys: Sequence[bytes], pages: Sequence[int]) -> list[Node]:
        """Index the first full pages by these keys. Returns their nodes; a key that was there keeps its page."""
        found: list[Node] = []
        for key, page in zip(keys, pages, strict=False):
            node = self._nodes.get(key)
            if node is None:
                self._pages.hold([page])
                node = self._add(key, page)
                if self._lower is not None and self._lower.has_lost(key):
                    self._lower.spill_page(key, page)
            found.append(node)
        self._touch(found)
        return found

    def keep_state(self, node: Node, slot: int) -> None:
        """Put a checkpoint at the end of a node's page, unless there is one."""
        if node.state >= 0:
            return
        self._slots.hold([slot])
        self._checkpoint(node, slot)
        if self._lower is not None and self._lower.has_lost(_state_key(node.key)):
            self._lower.spill_state(_state_key(node.key), slot)

    def take_pages(self, n: int) -> list[int] | None:
        """n pages, each held once; None, and nothing changed, when too many are in use. Evicts pages if need be."""
        if n > self._pages.n_free:
            self._evict(n - self._pages.n_free)
        if n > self._pages.n_free:
            return None
        return [self._pages.take() for _ in range(n)]

    def take_state(self) -> int | None:
        """A slot, held once; None when all are in use. Evicts checkpoints where no slot is free."""
        while not self._slots.n_free:
            oldest = next((node for node in self._checkpoints.values() if not self._slots.shared(node.state)), None)
            if oldest is None:
                return None
            self._forget_state(oldest, spill=True)
            self.evicted_states += 1
        return self._slots.take()

    def spill(self) -> bool:
        """Give the least recently used page to the level below. Returns False where the index is empty."""
        oldest = next(iter(self), None)
        if oldest is not None:
            self._forget(oldest, spill=True)
        return oldest is not None

    def clear(self) -> None:
        for node in list(self):
            self._forget(node, spill=False)

    def _has_state(self, key: bytes) -> bool:
        node = self._nodes.get(key)
        return (node is not None and node.state >= 0) or (self._lower is not None and _state_key(key) in self._lower)

    def _reach(self, keys: Sequence[bytes]) -> int:
        """How many of these consecutive keys are kept, on the device or below."""
        here = self.n_on_device(keys)
        return here if self._lower is None else here + _n_leading(keys[here:], self.__contains__)

    def _bring(self, keys: Sequence[bytes]) -> list[Node]:
        """The nodes of consecutive keys, held, up to the first that cannot be had. Fetches from below if need be."""
        found = [self._nodes[key] for key in takewhile(self._nodes.__contains__, keys)]
        self._pages.hold([node.page for node in found])  # at once: nothing may leave while others come
        for key in keys[len(found) :]:
            node = self._nodes.get(key)
            if node is not None:
                self._pages.hold([node.page])
            else:
                node = self._fetch(key)
            if node is None:
                break
            found.append(node)
        return found

    def _fetch(self, key: bytes) -> Node | None:
        """A page from below, in the index and held."""
        taken = self.take_pages(1)
        if taken is None or self._lower is None:
            return None
        if not self._lower.fetch_page(key, taken[0]):
            self._pages.drop(taken)
            return None
        self._pages.hold(taken)
        return self._add(key, taken[0])

    def _last_to_continue(self, nodes: Sequence[Node]) -> tuple[int, int]:
        """How many of these consecutive nodes a path can continue behind, and the slot of the state there, held."""
        if not self._recurrent:
            return len(nodes), -1
        for end in range(len(nodes), 0, -1):
            node = nodes[end - 1]
            if self._has_state(node.key) and self._bring_state(node):
                return end, node.state
        return 0, -1

    def _bring_state(self, node: Node) -> bool:
        """Hold the checkpoint at a node, fetched from below if need be. Returns False where it cannot be had."""
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
        return True

    def _has_lost(self, keys: Sequence[bytes]) -> bool:
        return self._lower is not None and any(map(self._lower.has_lost, keys))

    def _check(self, keys: Sequence[bytes]) -> None:
        """Find all damaged entries below of pages that are computed again since one before them was lost: now, and not
        one each time that a path comes this way."""
        assert self._lower is not None
        for below in (*keys, *map(_state_key, keys)):
            if below in self._lower:
                self._lower.check(below)

    def _add(self, key: bytes, page: int) -> Node:
        """A new node, which takes over a reference to its page."""
        node = self._nodes[key] = Node(key, page)
        return node

    def _checkpoint(self, node: Node, slot: int) -> None:
        """Give a node a state; it takes over a reference to its slot."""
        node.state = slot
        self._checkpoints[node.key] = node

    def _touch(self, nodes: Sequence[Node]) -> None:
        """Make the nodes of one path, first page first, the most recently used: the last page least so of them."""
        move = self._nodes.move_to_end
        for node in reversed(nodes):
            move(node.key)

    def _evict(self, n: int) -> None:
        """Forget up to n pages that nobody else holds, the least recently used first. A page is always touched after
        those that follow it, so they come first."""
        unheld = (node for node in self._nodes.values() if not self._pages.shared(node.page))
        for node in list(islice(unheld, n)):
            self.evicted += 1
            self.evicted_states += node.state >= 0
            self._forget(node, spill=True)

    def _forget(self, node: Node, *, spill: bool) -> None:
        if node.state >= 0:
            self._forget_state(node, spill=spill)
        if spill and self._lower is not None:
            self._lower.spill_page(node.key, node.page)
        del self._nodes[node.key]
        self._pages.drop([node.page])

    def _forget_state(self, node: Node, *, spill: bool) -> None:
        if spill and self._lower is not None:
            self._lower.spill_state(_state_key(node.key), node.state)
        del self._checkpoints[node.key]
        self._slots.drop([node.state])
        node.state = -1


def _n_leading(keys: Sequence[bytes], is_known: Callable[[bytes], bool]) -> int:
    """How many of the first keys are known, without a gap."""
    return len(list(takewhile(is_known, keys)))


def _state_key(key: bytes) -> bytes:
    """The key under which a page's checkpoint lies below."""
    return blake2b(key, digest_size=KEY_BYTES, person=b"state").digest()
