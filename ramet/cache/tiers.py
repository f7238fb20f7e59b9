"""The lower tiers of the state cache: what the device gives up goes to main memory, and from there to disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import torch

from ramet.cache.disk import Disk
from ramet.cache.entry import Entry, owned
from ramet.cache.memory import Memory
from ramet.cache.prefix_index import KEY_BYTES


class Tiers:
    """Entries (named CPU tensors) by key; the least recently used leave memory for disk, and disk for good.
    Thread-safe.

    memory_bytes, disk_bytes: budgets; 0 switches a tier off. disk: a directory, which others may use too; None switches
    that tier off. identity: what entries depend on beside their key (model, dtype, page size); entries of another one
    are never returned. A key is 20 bytes and stands for exact content: an entry that is there is not replaced. The
    tensors of `put` belong to the cache, and `get` shares them with it: neither side changes them.
    """

    def __init__(self, memory_bytes: int, disk: Path | None, disk_bytes: int, identity: str) -> None:
        self._lock = threading.Lock()  # the memory's; held while entries go into the disk's queue, not to read files
        self._memory = Memory(memory_bytes)
        self._disk = Disk(disk, disk_bytes, identity) if disk is not None and disk_bytes > 0 else None
        self._n_misses = 0
        self._closed = False
        self._lost: set[bytes] = set()  # keys of entries that were on disk and could not be read

    def __contains__(self, key: bytes) -> bool:
        """Whether an entry is there. Its file may still turn out to be gone or damaged."""
        with self._lock:
            return not self._closed and (key in self._memory or (self._disk is not None and key in self._disk))

    def put(self, key: bytes, entry: Mapping[str, torch.Tensor]) -> None:
        """Take an entry in as the most recently used; views are copied. Does nothing after `close`."""
        assert len(key) == KEY_BYTES
        with self._lock:
            if not self._closed and not self._memory.touch(key):
                self._admit(key, owned(entry))

    def get(self, key: bytes) -> Entry | None:
        """The entry, now the most recently used and in memory; None where there is none or its file is damaged.

        A file is read and checked here: some 20 ms for 20 MB.
        """
        with self._lock:
            if self._closed:
                return None
            entry = self._memory.get(key)
        if entry is None and self._disk is not None and key in self._disk:
            entry = self._disk.get(key)
            if entry is not None:
                self.put(key, entry)
            else:
                self._lost.add(key)
        with self._lock:
            self._n_misses += entry is None
        return None if entry is None else dict(entry)

    def has_lost(self, key: bytes) -> bool:
        """Whether an entry was on disk and could not be read. `put` writes it there again at once."""
        return key in self._lost

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges, those of the disk only where it is on. A miss is in neither tier."""
        with self._lock:
            own = {**self._memory.stats(), "tiers_misses_total": float(self._n_misses)}
        return own if self._disk is None else {**own, **self._disk.stats()}

    def flush(self) -> None:
        """Wait until all that is on its way to disk is there."""
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Write to disk what is in memory, as far as it fits, for the next process, and forget all entries."""
        with self._lock:
            last = [] if self._closed else self._memory.items()
            self._closed = True
            self._memory.clear()
        if self._disk is not None:
            self._disk.close(last)

    def clear(self) -> None:
        """Forget all entries of this identity, on disk too."""
        with self._lock:
            self._memory.clear()
        if self._disk is not None:
            self._disk.clear()

    def _admit(self, key: bytes, entry: Entry) -> None:
        left = self._memory.put(key, entry)
        if self._disk is None:
            return
        for each, gone in left:
            self._disk.put(each, gone)
        if key in self._lost:
            self._disk.put(key, entry)
            self._lost.discard(key)
