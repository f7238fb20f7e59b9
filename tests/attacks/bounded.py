"""What an attack may take at most: memory that is measured, and a wall in front of the machine's own."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS, _REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # what the kernel takes for: begin to measure the peak of resident memory anew
_WALL = 4  # times what is allowed: of address space, where an allocation fails in place of the machine
_AROUND = 1024  # MiB of address space for what takes none of memory: stacks and arenas of threads


@contextmanager
def bounded(mib: int) -> Iterator[None]:
    """Fails where the block makes resident memory grow by more than `mib` MiB at its peak; allocations fail before
    they are several times that. Whatever hangs is ended by pytest's own limit."""
    assert threading.current_thread() is threading.main_thread()
    _REFS.write_text(_RESET_PEAK)
    before = _kib("VmRSS")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wall = (_kib("VmSize") << 10) + ((mib * _WALL + _AROUND) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (wall if hard == resource.RLIM_INFINITY else min(wall, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    grown = (_kib("VmHWM") - before) >> 10
    assert grown <= mib, f"resident memory grew by {grown} MiB, {mib} at most"


def _kib(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
