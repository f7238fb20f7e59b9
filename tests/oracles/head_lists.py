"""The work lists of the head, in NumPy: what native/plan.cpp is compared with."""

from __future__ import annotations

import numpy as np

from ramet.round import Round
from ramet.tree import IntArray


def plan(packed: Round) -> dict[str, IntArray]:
    """See `room` of ops/head/triton.py."""
    normalize, reads = packed["normalize"], packed["read_index"]
    slots = np.where(normalize != 0, np.cumsum(normalize != 0) - 1, -1)
    return {
        "head/rows": np.repeat(reads, np.diff(packed["offsets"])),
        "head/normalized": np.flatnonzero(normalize).astype(np.int32),
        "head/slots": slots[reads].astype(np.int32),
    }
