"""Makes the C library's allocator keep the memory that one pass frees for the next."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's numbers
_LARGEST = (1 << 28, 1 << 25)  # what is larger goes back as soon as it is freed; older releases take the second at most
_KEPT = (1 << 31) - 1
_HEAP = 64 << 20  # of this much each are the heaps of threads other than the first
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed() -> bool:
    """Set the allocator up, for the whole process. Returns whether that was done: it is not where the allocator has no
    such settings (they are glibc's), or the user has set them in the environment.

    A pass frees some hundred MB that the next takes again. If the system got them back in between, every page would be
    faulted in and cleared again, which takes a fifth of the time of a pass of few rows."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or is_set_by_user():
        return False
    # First, for the others end its search for a good threshold: where this fails, tensors would go back at 128 KiB.
    if not any(mallopt(_MMAP_THRESHOLD, n) for n in _LARGEST):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT) and mallopt(_TOP_PAD, _HEAP))


def is_set_by_user() -> bool:
    """Whether the environment sets what `keep_freed` would."""
    return "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "") or any(name in os.environ for name in _VARIABLES)
