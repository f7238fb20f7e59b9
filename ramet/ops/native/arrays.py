"""Arrays as compiled code takes and makes them: by their addresses, and many in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.tree import IntArray


def address(array: npt.NDArray[Any] | None) -> int:
    """Where its first element lies; null for None."""
    return 0 if array is None else array.ctypes.data


def addresses(*arrays: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Of each, as a struct of pointers has them."""
    return np.array([*map(address, arrays)], np.int64)


def cut(data: IntArray, rooms: Sequence[int], used: Sequence[int] | None = None) -> list[IntArray]:
    """Arrays one behind another in `data`, each with its room; `used`: how much of it."""
    return [data[at : at + n] for at, n in zip(accumulate(rooms[:-1], initial=0), used or rooms, strict=True)]
