"""Ragged: groups of different sizes that lie end to end in flat arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]
Places = npt.NDArray[np.int64]


def owners(sizes: Ints) -> Places:
    """[sum] the group of each element."""
    return np.repeat(np.arange(len(sizes)), sizes)


def before(sizes: Ints) -> Places:
    """[N] how many elements the groups before each group have."""
    found: Places = np.cumsum(sizes, dtype=np.int64) - sizes
    return found


def ranges(starts: Ints, sizes: Ints) -> Places:
    """[sum] the numbers starts[i] .. starts[i] + sizes[i] - 1 of each group i."""
    shifts = np.repeat(starts - before(sizes), sizes)
    found: Places = np.arange(len(shifts)) + shifts
    return found
