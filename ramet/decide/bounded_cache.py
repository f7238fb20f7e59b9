"""BoundedCache: nearly the least recently used entries leave first. Reads take no lock, writes take one."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Two generations of entries. When the weight of the young one reaches half of `limit`, it becomes the old one, and
    the old one goes.

    Reading an entry moves it to the young generation. So entries in use stay, and the others go after two turns, at the
    price of one dict look-up a read.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._lock = threading.Lock()
        self._weight = 0
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}

    def get(self, key: K) -> V | None:
        """The value kept under a key, or None."""
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.put(key, *entry)
        return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value, unless it weighs more than half of the limit."""
        if weight > self._half:
            return
        with self._lock:
            if key in self._young:
                return
            if self._weight + weight > self._half:
                self._old, self._young, self._weight = self._young, {}, 0
            self._young[key] = (value, weight)
            self._weight += weight

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
