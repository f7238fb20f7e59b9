"""Memory that large requests took, given back to the system."""

from __future__ import annotations

import ctypes
import threading
import time

EVERY_S = 5.0  # at most: going through all that was freed stops others who allocate

_lock = threading.Lock()
_given_back = float("-inf")


def give_back() -> None:
    """Return freed memory to the system, at most once in EVERY_S seconds; does nothing where the C library is not
    glibc. The engine sets the library to keep freed memory, so that a pass finds what the pass before it freed."""
    global _given_back
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None or not _lock.acquire(blocking=False):
        return
    try:
        if time.monotonic() - _given_back >= EVERY_S:
            trim(0)
            _given_back = time.monotonic()
    finally:
        _lock.release()
