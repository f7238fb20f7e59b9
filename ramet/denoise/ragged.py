"""Ragged: groups of different sizes that lie end to end in flat arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]
Places = npt.NDArray[np.int64]


def owners(sizes: Ints) -> Places:
    """[sum] of each element the group it is of."""
    return np.repeat(np.arange(len(sizes)), sizes)


def before(sizes: Ints) -> Places:
    """[N] elements of the groups before each."""
    found: Places = np.cumsum(sizes, dtype=np.int64) - sizes
    return found


def ranges(starts: Ints, sizes: Ints) -> Places:
    """[sum] sizes[i] numbers from starts[i] on, for each i."""
    shifts = np.repeat(starts - before(sizes), sizes)
    found: Places = np.arange(len(shifts)) + shifts
    return found
