"""The cache tier on disk: which files there are, and the thread that writes them.

The budget is for the whole directory, with files of all identities and processes: states of unserved models age, and
leave. A failure is logged as a warning, once a kind, and counts as a miss; it never reaches the caller.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from ramet.cache.directory import Directory
from ramet.cache.entry import Damaged, Entry, n_bytes
from ramet.cache.recent import Recent

QUEUE_BYTES = 256 << 20  # of entries waiting to be written
MAX_FAILURES = 3  # writes that fail one after the other before the tier writes no more
_SCANS_A_BUDGET = 8  # the directory is read again, for what others did, each time this part of the budget was written

_LOG = logging.getLogger("ramet.cache")


class Disk:
    """Entries in files up to a budget in bytes, least recently used out first. Thread-safe."""

    def __init__(self, root: Path, max_bytes: int, identity: str, queue_bytes: int = QUEUE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.hits = self.evicted = self.dropped = self.damaged = self.failed = self.written_bytes = 0
        self._queue_bytes = queue_bytes
        self._directory = Directory(root, identity)
        self._warned: set[str] = set()
        self._writing = threading.Lock()  # held while files are written or cleared; taken before the next one
        self._changed = threading.Condition()  # guards all below; never held while a file is touched
        self._files: Recent[str, int] = Recent(int)
        self._pending: Recent[str, Entry] = Recent(n_bytes)
        self._failures_in_row = 0
        self._unscanned_bytes = 0
        self._closed = False
        self._open()
        self._thread = threading.Thread(target=self._run, name="ramet-cache-disk", daemon=True)
        self._thread.start()

    def __contains__(self, key: bytes) -> bool:
        """Whether an entry is on disk or on its way there. `get` may still find it gone or damaged."""
        name = self._directory.name(key)
        with self._changed:
            return name in self._pending or name in self._files

    def put(self, key: bytes, entry: Entry) -> None:
        """Queue an entry that is not on disk yet. It is dropped, and counted, where the queue is full."""
        name = self._directory.name(key)
        with self._changed:
            there = self._files.get(name) is not None
            if not there and self._pending.get(name) is None:
                self._enqueue(name, entry)
        if there:
            self._directory.touch(name)

    def get(self, key: bytes) -> Entry | None:
        """The entry, now the most recently used; None where there is none, or its file is gone or damaged."""
        name = self._directory.name(key)
        with self._changed:
            entry = self._pending.get(name)
            size = self._files.get(name)
        if entry is None and size is not None:
            entry = self._read(name, size)
        with self._changed:
            self.hits += entry is not None
        return entry

    def flush(self) -> None:
        """Wait until all that is queued is written or dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def clear(self) -> None:
        """Remove this identity's entries."""
        with self._writing:
            with self._changed:
                self._pending.clear()
                self._changed.notify_all()
                names = [name for name, _ in self._files.items() if self._directory.is_own(name)]
            for name in names:
                self._discard(name)

    def close(self, last: Sequence[tuple[bytes, Entry]] = ()) -> None:
        """Write what is queued and as many of the last entries of `last` as fit, and end the thread."""
        named = [(self._directory.name(key), entry) for key, entry in last]
        fitting = _latest(named, self.max_bytes)
        with self._changed:
            self._closed = True
            self.dropped += len(named) - len(fitting)
            for name, entry in fitting:
                if name not in self._files:
                    self._pending.put(name, entry)
            self._changed.notify_all()
        self._thread.join()
        for name, _ in fitting:
            self._directory.touch(name)  # also of those that were on disk before: a restart finds them in this order

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges."""
        with self._changed:
            return {
                "disk_tier_hits_total": float(self.hits),
                "disk_tier_evicted_total": float(self.evicted),
                "disk_tier_dropped_total": float(self.dropped),
                "disk_tier_damaged_total": float(self.damaged),
                "disk_tier_failures_total": float(self.failed),
                "disk_tier_written_bytes_total": float(self.written_bytes),
                "disk_tier_entries": float(len(self._files)),
                "disk_tier_bytes": float(self._files.n_bytes),
                "disk_tier_queued_bytes": float(self._pending.n_bytes),
                "disk_tier_writing": float(not self._gave_up and not self._closed),
            }

    @property
    def _gave_up(self) -> bool:
        return self._failures_in_row >= MAX_FAILURES

    def _open(self) -> None:
        try:
            self._directory.prepare()
            self._directory.sweep()
            self._scan()
            self._make_room(0)
        except OSError as error:
            self._fail(error)

    def _enqueue(self, name: str, entry: Entry) -> None:
        size = n_bytes(entry)
        full = len(self._pending) > 0 and self._pending.n_bytes + size > self._queue_bytes
        if full or size > self.max_bytes or self._gave_up or self._closed:
            self.dropped += 1
            return
        self._pending.put(name, entry)
        self._changed.notify_all()

    def _read(self, name: str, size: int) -> Entry | None:
        try:
            entry = self._directory.read(name, size)
        except FileNotFoundError:  # another process removed it
            self._forget(name)
        except Damaged as error:
            self._warn("damaged", f"{self._directory.root / name} is damaged and is removed: {error}")
            self.damaged += 1
            self._discard(name)
        except (OSError, MemoryError) as error:
            self._warn("read", f"cannot read {self._directory.root / name}: {error}")
            self._forget(name)
        else:
            self._directory.touch(name)
            return entry
        return None

    def _discard(self, name: str) -> None:
        try:
            self._directory.remove(name)  # before it is forgotten: a new file of that name is never taken for it
        except OSError as error:
            self._warn("remove", f"cannot remove {self._directory.root / name}: {error}")
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._changed:
            self._files.drop(name)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            with self._writing:
                self._store(*item)

    def _next(self) -> tuple[str, Entry] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            return self._pending.oldest() if self._pending else None

    def _store(self, name: str, entry: Entry) -> None:
        with self._changed:
            if self._pending.get(name) is not entry:
                return  # cleared meanwhile
        try:
            if not self._gave_up:
                self._write(name, entry)
        except Exception as error:  # whatever it is, the thread lives on: flush and close wait for it
            self._fail(error)
        with self._changed:
            self.dropped += name not in self._files
            self._pending.drop(name)
            self._changed.notify_all()

    def _write(self, name: str, entry: Entry) -> None:
        self._make_room(n_bytes(entry))
        size = self._directory.write(name, entry)
        with self._changed:
            self._files.put(name, size)
            self._failures_in_row = 0
            self.written_bytes += size
            self._unscanned_bytes += size
        if self._unscanned_bytes * _SCANS_A_BUDGET >= self.max_bytes:
            self._scan()
        self._make_room(0)  # a file is a little larger than its entry

    def _scan(self) -> None:
        files: Recent[str, int] = Recent(int)
        for name, size in self._directory.scan().items():
            files.put(name, size)
        with self._changed:
            self._files = files
            self._unscanned_bytes = 0

    def _make_room(self, n_more: int) -> None:
        while (name := self._surplus(n_more)) is not None:
            self._directory.remove(name)
            with self._changed:
                self._files.drop(name)
                self.evicted += 1

    def _surplus(self, n_more: int) -> str | None:
        with self._changed:
            over = self._files.n_bytes + n_more > self.max_bytes
            return self._files.oldest()[0] if over and self._files else None

    def _fail(self, error: Exception) -> None:
        """Note that a write failed; after some failures in a row nothing is written any more."""
        self._warn("write", f"cannot write to {self._directory.root}: {type(error).__name__}: {error}")
        with self._changed:
            self.failed += 1
            self._failures_in_row += 1
        if self._gave_up:
            self._warn("off", f"{MAX_FAILURES} failures in a row: nothing more is written to {self._directory.root}")

    def _warn(self, kind: str, message: str) -> None:
        """Log a warning, once a kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("states on disk: %s (such a message comes once)", message)


def _latest(entries: Sequence[tuple[str, Entry]], max_bytes: int) -> list[tuple[str, Entry]]:
    """The last entries that fit together, in their order."""
    kept = []
    for name, entry in reversed(entries):
        max_bytes -= n_bytes(entry)
        if max_bytes < 0:
            break
        kept.append((name, entry))
    return kept[::-1]
