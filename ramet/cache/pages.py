"""Page and state bookkeeping without tensors: which path holds which pages, and which slot of a recurrent state.

A page is `page_size` consecutive rows of one path through a tree; a recurrent state is what a model with recurrent
layers has folded a path's rows into. Both are counted by reference; a Path owns a reference to each of its pages and
to its state. The prefix index holds further references: to what later paths may find again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from ramet.cache.pool import Pool
from ramet.cache.prefix_index import KEY_BYTES, Lower, PrefixIndex
from ramet.tree import IntArray


@dataclass(slots=True, eq=False)
class Path:
    """The pages of positions [0, length) of one path, and the slot of the recurrent state behind them (-1: none).
    Holds a reference to each until released."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    state: int = -1


class Pages:
    """All pages of a store, and its `n_states` slots of recurrent states (0: the model has none).

    Not thread-safe: the engine's thread alone uses it.
    """

    def __init__(self, n_pages: int, page_size: int, n_states: int = 0, lower: Lower | None = None) -> None:
        self.page_size = page_size
        self.n_pages = n_pages
        self.n_states = n_states
        self.hits = 0  # tokens that `match` found, and those that it did not find
        self.misses = 0
        self._pages = Pool(n_pages)
        self._slots = Pool(n_states)
        self.index = PrefixIndex(self._pages, self._slots, lower)

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
        """Pages that the index holds."""
        return len(self.index)

    @property
    def n_checkpoints(self) -> int:
        """States that the index holds."""
        return self.index.n_checkpoints

    def keys(self, tokens: IntArray, salt: str = "", block: int = 1) -> list[bytes]:
        """A key for each full page: a digest of all tokens up to its end, of the salt, and of how many rows see each
        other: the same tokens leave other rows. 4 ms for 65536 tokens."""
        secret = blake2b(f"{block} {salt}".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
        digest = blake2b(digest_size=KEY_BYTES, key=secret)
        keys = list[bytes]()
        data = np.ascontiguousarray(tokens, "<i4").tobytes()
        n_bytes = 4 * self.page_size
        for begin in range(0, len(data) - n_bytes + 1, n_bytes):
            digest.update(data[begin : begin + n_bytes])
            keys.append(digest.digest())
        return keys

    def match(self, keys: Sequence[bytes]) -> Path:
        """A path of the longest beginning of the pages of these keys that the index has and that can be continued."""
        pages, state = self.index.match(keys)
        path = Path(pages, len(pages) * self.page_size, state)
        self.hits += path.length
        self.misses += len(keys) * self.page_size - path.length
        return path

    def reach(self, keys: Sequence[bytes]) -> int:
        """Rows of the first of these pages, as far as the index has them on the device."""
        return self.page_size * self.index.n_on_device(keys)

    def keep(self, keys: Sequence[bytes], path: Path, states: Sequence[tuple[int, int]] = ()) -> None:
        """Put the first pages of `path`, which are full and have these keys, into the index, and the checkpoints
        `states`: positions and slots, of which those at an end of a page stay."""
        assert len(keys) <= path.length // self.page_size
        nodes = self.index.keep(keys, path.pages)
        for position, slot in states:
            at, rest = divmod(position, self.page_size)
            if rest == 0 and 0 < at <= len(nodes):
                self.index.keep_state(nodes[at - 1], slot)

    def extend(self, path: Path, n_rows: int) -> tuple[IntArray, tuple[int, int] | None] | None:
        """Make room for n_rows more rows. Returns their slots [n_rows], and the page copy (from, to) to make first, if
        any.

        A last page that others hold too is replaced by a copy. Returns None, and changes nothing, when pages run out.
        """
        size = self.page_size
        used = path.length % size
        shared = used > 0 and self._pages.shared(path.pages[-1])
        n_new = -(-(path.length + n_rows) // size) - len(path.pages) + shared
        taken = self.index.take_pages(n_new)
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
        """Give a path further pages, behind its rows. Returns False, and changes nothing, when pages run out."""
        taken = self.index.take_pages(n_pages)
        path.pages.extend(taken or [])
        return taken is not None

    def take_state(self) -> int | None:
        """Take a slot, held once, for a state. Returns None when all are in use."""
        return self.index.take_state()

    def hold_state(self, slot: int) -> int:
        """Add a reference to a slot, which is returned."""
        self._slots.hold([slot])
        return slot

    def shares_state(self, slot: int) -> bool:
        """Whether a slot has more than one reference."""
        return self._slots.shared(slot)

    def drop_state(self, slot: int) -> None:
        """Give back a reference to a slot."""
        self._slots.drop([slot])

    def fork(self, path: Path, length: int | None = None, *, state: int = -1) -> Path:
        """Another path with the same pages. With `length` it has the first rows alone, and not the state behind the
        last one. With `state` it has that state, whose reference it takes over."""
        length = path.length if length is None else length
        assert length <= path.length
        pages = path.pages[: -(-length // self.page_size)]
        if state < 0 and length == path.length and path.state >= 0:
            state = self.hold_state(path.state)
        self._pages.hold(pages)
        return Path(pages, length, state)

    def release(self, path: Path) -> None:
        """Give back a path's references, and leave it empty."""
        self._pages.drop(path.pages)
        self._slots.drop([path.state] if path.state >= 0 else [])
        path.pages = []
        path.length = 0
        path.state = -1
