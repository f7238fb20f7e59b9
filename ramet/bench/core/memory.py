"""What each contestant of a comparison takes of a GPU's memory, as torch counts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceMemory:
    """Bytes of contestants, by name: `at_rest`, allocated by loading, and `peak`, the most that was allocated at a
    time. On a CPU nothing is counted."""

    def __init__(self) -> None:
        self.used: dict[str, dict[str, int]] = {}

    @contextmanager
    def of(self, name: str, *, loading: bool = False) -> Iterator[None]:
        """Count what the block takes as that contestant's."""
        if not torch.cuda.is_available():
            yield
            return
        before = _allocated()
        torch.cuda.reset_peak_memory_stats()
        yield
        peak = torch.cuda.max_memory_allocated() - before
        used = self.used.setdefault(name, {"at_rest": 0, "peak": 0})
        used["peak"] = max(used["peak"], used["at_rest"] + peak)
        if loading:
            used["at_rest"] += _allocated() - before


def _allocated() -> int:
    """Bytes, once the device is idle."""
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
