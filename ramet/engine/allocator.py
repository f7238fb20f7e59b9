"""The C library's allocator, told to keep what one pass frees for the next."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's numbers
_LARGEST = 1 << 28  # what is larger goes back to the system as soon as it is freed
_KEPT = (1 << 31) - 1
_HEAP = 64 << 20  # of this much each are the heaps of threads other than the first


def keep_freed() -> bool:
    """Whether it was told: where it knows how (glibc). A pass frees some hundred MB that the next takes again; given
    back in between, every page of it is faulted in and cleared once more, a fifth of the time of a pass of few rows."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    told = [mallopt(_MMAP_THRESHOLD, _LARGEST), mallopt(_TRIM_THRESHOLD, _KEPT), mallopt(_TOP_PAD, _HEAP)]
    return all(told)
