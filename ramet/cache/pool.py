"""Numbered places, counted by reference: pages of keys and values, slots of recurrent states."""

from __future__ import annotations

from collections.abc import Iterable


class Pool:
    """Places 0 to n - 1; one is free while nobody holds it."""

    def __init__(self, n: int) -> None:
        self._free = list(range(n - 1, -1, -1))
        self._references = [0] * n  # not numpy's: places are looked up one by one

    def __len__(self) -> int:
        return len(self._references)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free place, held once."""
        place = self._free.pop()
        self._references[place] = 1
        return place

    def hold(self, places: Iterable[int]) -> None:
        """Add a reference to each."""
        references = self._references
        for place in places:
            assert references[place] > 0
            references[place] += 1

    def drop(self, places: Iterable[int]) -> None:
        """Give back a reference to each."""
        references = self._references
        for place in places:
            left = references[place] = references[place] - 1
            assert left >= 0
            if left == 0:
                self._free.append(place)

    def shared(self, place: int) -> bool:
        """Whether it has more than one reference."""
        return self._references[place] > 1
