"""The cache tier in main memory."""

from __future__ import annotations

from ramet.cache.entry import Entry, n_bytes
from ramet.cache.recent import Recent


class Memory:
    """Entries up to a budget in bytes; `put` returns those that had to leave. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.hits = self.evicted = 0
        self._entries: Recent[bytes, Entry] = Recent(n_bytes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def items(self) -> list[tuple[bytes, Entry]]:
        """All entries, least recently used first."""
        return self._entries.items()

    def touch(self, key: bytes) -> bool:
        """Mark an entry as most recently used. Returns whether it is there."""
        return self._entries.get(key) is not None

    def get(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        self.hits += entry is not None
        return entry

    def put(self, key: bytes, entry: Entry) -> list[tuple[bytes, Entry]]:
        """Take an entry in as the most recently used. Returns what had to leave: it, where it never fits."""
        if n_bytes(entry) > self.max_bytes:
            return [(key, entry)]
        self._entries.put(key, entry)
        left = []
        while self._entries.n_bytes > self.max_bytes:
            left.append(self._entries.oldest())
            self._entries.drop(left[-1][0])
        self.evicted += len(left)
        return left

    def clear(self) -> None:
        self._entries.clear()

    def stats(self) -> dict[str, float]:
        return {
            "memory_tier_hits_total": float(self.hits),
            "memory_tier_evicted_total": float(self.evicted),
            "memory_tier_entries": float(len(self._entries)),
            "memory_tier_bytes": float(self._entries.n_bytes),
        }
