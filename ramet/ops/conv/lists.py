"""The work lists of the causal convolution in Triton: where each row's predecessors are (native/plan_recurrent.cpp).

Sources of inputs: a row of the stream, or -2 - n for the nth row of all windows, or -1 for zeros. "conv/before": the
width - 1 inputs before each row, the newest first. "conv/after": the number of pieces whose state is kept, then for
each its slot and the sources of the window behind it, the oldest first.
"""

from __future__ import annotations

from ramet.round import Capacity

BY_ROW = ("conv/before",)  # lists with an entry for every row, those of padding too


def room(capacity: Capacity, *, width: int) -> dict[str, int]:
    """How long the lists get at most."""
    return {"conv/before": capacity.rows * (width - 1), "conv/after": 1 + capacity.rows * width}
