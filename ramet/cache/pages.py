"""Page bookkeeping without tensors: who holds which page, and which pages hold which tokens.

A page is `page_size` consecutive rows of one path through a tree. Pages are counted by reference; a
Path owns one reference to each of its pages. The prefix index keeps full pages of finished paths,
found again by the exact tokens from the path's start, and gives up the least recently used ones
when pages run out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from ramet.tree import IntArray


@dataclass(slots=True, eq=False)
class Path:
    """The pages of positions [0, length) of one path. Holds a reference to each page until released."""

    pages: list[int] = field(default_factory=list)
    length: int = 0


_Key = tuple[int | str, bytes]  # what it follows (a node's id; the salt for first pages), and its tokens


@dataclass(slots=True, eq=False)
class _Node:
    """A full page in the index: the tokens from its parent's end, and how many pages follow it."""

    key: _Key
    page: int
    parent: _Node | None
    n_children: int = 0


class Pages:
    """All pages of a store. Not thread-safe: the engine's thread alone uses it."""

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.n_pages = n_pages
        self.hits = self.misses = self.evicted = 0
        self._free = list(range(n_pages - 1, -1, -1))
        self._references = np.zeros(n_pages, np.int32)
        self._index: OrderedDict[_Key, _Node] = OrderedDict()  # least recently used first

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_indexed(self) -> int:
        """Pages that the prefix index holds."""
        return len(self._index)

    def match(self, tokens: IntArray, salt: str = "") -> Path:
        """The longest run of full pages in the index that starts like `tokens`; the path holds them."""
        path, found = Path(), []
        parent: int | str = salt
        for key in self._keys(tokens):
            node = self._index.get((parent, key))
            if node is None:
                break
            found.append(node)
            path.pages.append(node.page)
            parent = id(node)
        self._touch(found)
        path.length = len(path.pages) * self.page_size
        self._references[path.pages] += 1
        self.hits += path.length
        self.misses += len(tokens) - path.length
        return path

    def keep(self, tokens: IntArray, path: Path, salt: str = "") -> None:
        """Put the full pages of `path`, whose rows are `tokens`, into the index."""
        parent_id: int | str = salt
        parent: _Node | None = None
        found = []
        for key, page in zip(self._keys(tokens[: path.length]), path.pages, strict=False):
            node = self._index.get((parent_id, key))
            if node is None:
                node = _Node((parent_id, key), page, parent)
                self._index[node.key] = node
                self._references[page] += 1
                if parent is not None:
                    parent.n_children += 1
            found.append(node)
            parent_id, parent = id(node), node
        self._touch(found)

    def extend(self, path: Path, n_rows: int) -> tuple[IntArray, tuple[int, int] | None] | None:
        """Make room for n_rows more rows: their slots, and the page copy to make first, if any.

        A last page that others hold too is replaced by a copy. None, and nothing changed, when
        pages run out.
        """
        size = self.page_size
        used = path.length % size
        shared = used > 0 and int(self._references[path.pages[-1]]) > 1
        n_new = -(-(path.length + n_rows) // size) - len(path.pages) + shared
        taken = self._take(n_new)
        if taken is None:
            return None
        copy = None
        if shared:
            copy = (path.pages[-1], taken[0])
            self._drop(path.pages.pop())
        path.pages.extend(taken)
        rows = np.arange(path.length, path.length + n_rows)
        path.length += n_rows
        slots = np.array(path.pages, np.int32)[rows // size] * size + rows % size
        return slots.astype(np.int32), copy

    def fork(self, path: Path, length: int | None = None) -> Path:
        """Another path of the same pages, of the first `length` rows where given."""
        length = path.length if length is None else length
        assert length <= path.length
        pages = path.pages[: -(-length // self.page_size)]
        self._references[pages] += 1
        return Path(pages, length)

    def release(self, path: Path) -> None:
        """Give back a path's references; it is empty afterwards."""
        for page in path.pages:
            self._drop(page)
        path.pages, path.length = [], 0

    def clear(self) -> None:
        """Empty the index."""
        while self._index:
            self._forget(next(reversed(self._index.values())))

    def _keys(self, tokens: IntArray) -> list[bytes]:
        size = self.page_size
        data = np.ascontiguousarray(tokens, np.int32)
        return [data[i : i + size].tobytes() for i in range(0, len(data) - size + 1, size)]

    def _take(self, n: int) -> list[int] | None:
        if n > self.n_free:
            self._evict(n - self.n_free)
        if n > self.n_free:
            return None
        taken = [self._free.pop() for _ in range(n)]
        self._references[taken] += 1
        return taken

    def _touch(self, nodes: list[_Node]) -> None:
        """Nodes of one path, first page first, are the most recently used: the last page least so of them."""
        for node in reversed(nodes):
            self._index.move_to_end(node.key)

    def _evict(self, n: int) -> None:
        """Forget up to n pages that nobody holds, the least recently used first. A page is always touched after
        those that follow it, so they come first."""
        for node in list(self._index.values()):
            if n == 0:
                return
            if node.n_children == 0 and self._references[node.page] == 1:
                self._forget(node)
                self.evicted += 1
                n -= 1

    def _forget(self, node: _Node) -> None:
        del self._index[node.key]
        if node.parent is not None:
            node.parent.n_children -= 1
        self._drop(node.page)

    def _drop(self, page: int) -> None:
        self._references[page] -= 1
        assert self._references[page] >= 0
        if self._references[page] == 0:
            self._free.append(page)
