"""Tables: the paths of many replies in arrays, a row each, so that all of them are extended at once."""

from __future__ import annotations

import numpy as np

from ramet.cache.pages import Pages, Path
from ramet.tree import IntArray


class Tables:
    """Paths by their places, which are small numbers. While a path is here nobody else uses it; its pages hold `n_rows`
    rows, and its own `length` is set when it leaves."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.n_rows = np.zeros(0, np.int32)  # [P] in pages
        self.n_pages = np.zeros(0, np.int32)  # [P]
        self.numbers = np.zeros((0, 1), np.int32)  # [P, W] of the pages
        self._paths: dict[int, Path] = {}

    def add(self, place: int, path: Path) -> None:
        """Take over a path."""
        self._grow(place + 1, len(path.pages))
        self._paths[place] = path
        self.numbers[place, : len(path.pages)] = path.pages
        self.n_rows[place] = path.length
        self.n_pages[place] = len(path.pages)

    def drop(self, place: int) -> Path:
        """Give a path back to the caller."""
        path = self._paths.pop(place)
        path.length = int(self.n_rows[place])
        self.n_rows[place] = self.n_pages[place] = 0
        return path

    def path(self, place: int) -> Path:
        return self._paths[place]

    def extend(self, places: IntArray, n_more: IntArray) -> IntArray | None:
        """The slots of the next n_more [N] rows of these paths [N], path by path; None where pages have run out. The
        rows are part of the paths only after `advance`; until then this returns the same slots again."""
        if not self.reserve(places, n_more):
            return None
        size = self.pages.page_size
        begun = self.n_rows[places]
        n = int(n_more.sum())
        owners = np.repeat(np.arange(len(places)), n_more)
        rows = np.arange(n) - np.repeat(np.cumsum(n_more) - n_more, n_more) + begun[owners]
        slots: IntArray = self.numbers[places[owners], rows // size] * size + rows % size
        return slots.astype(np.int32)

    def reserve(self, places: IntArray, n_more: IntArray) -> bool:
        """Take pages for the next n_more [N] rows of these paths [N]. Returns False where pages have run out."""
        wanted = -(-(self.n_rows[places] + n_more) // self.pages.page_size)
        few = np.flatnonzero(wanted > self.n_pages[places]).tolist()
        return all(self._add_pages(int(places[i]), int(wanted[i])) for i in few)

    def advance(self, places: IntArray, n_more: IntArray) -> None:
        """Count the rows of the last `extend`, which are in their slots now."""
        self.n_rows[places] += n_more

    def context(self, places: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Of these paths [N]: the rows in pages [N], the number of these pages [N], and the pages, path by path."""
        n_rows = self.n_rows[places]
        n_pages = -(-n_rows // self.pages.page_size)
        held = self.numbers[places]
        return n_rows, n_pages, held[np.arange(held.shape[1]) < n_pages[:, None]]

    def _add_pages(self, place: int, n_pages: int) -> bool:
        path = self._paths[place]
        begun = int(self.n_pages[place])
        if not self.pages.append(path, n_pages - begun):
            return False
        self._grow(0, n_pages)
        self.numbers[place, begun:n_pages] = path.pages[begun:]
        self.n_pages[place] = n_pages
        return True

    def _grow(self, n_places: int, width: int) -> None:
        """Make room for so many places, and so many pages of a path."""
        places, held = self.numbers.shape
        if n_places <= places and width <= held:
            return
        more = max(n_places, 2 * places) - places if n_places > places else 0
        wider = max(width, 2 * held) - held if width > held else 0
        self.numbers = np.pad(self.numbers, ((0, more), (0, wider)))
        self.n_rows = np.pad(self.n_rows, (0, more))
        self.n_pages = np.pad(self.n_pages, (0, more))
