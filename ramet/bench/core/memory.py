"""What each contestant of a comparison takes of a GPU's memory, as torch counts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from ramet.bench.core.samples import JsonObject


@dataclass(slots=True)
class MemoryUse:
    """In bytes. at_rest: allocated by loading. peak: the most that was allocated at a time. reserved: by which the
    allocator's memory grew while this contestant loaded or ran, recorded graphs included."""

    at_rest: int = 0
    peak: int = 0
    reserved: int = 0


class DeviceMemory:
    """Contestants by name. On a CPU nothing is counted."""

    def __init__(self) -> None:
        self.used: dict[str, MemoryUse] = {}

    @contextmanager
    def of(self, name: str, *, loading: bool = False) -> Iterator[None]:
        """Count what the block takes as that contestant's."""
        if not torch.cuda.is_available():
            yield
            return
        allocated, reserved = _at_rest()
        torch.cuda.reset_peak_memory_stats()
        yield
        peak = torch.cuda.max_memory_allocated() - allocated
        allocated_now, reserved_now = _at_rest() if loading else (allocated, torch.cuda.memory_reserved())
        used = self.used.setdefault(name, MemoryUse())
        used.at_rest += allocated_now - allocated
        used.peak = max(used.peak, used.at_rest, peak if loading else used.at_rest + peak)
        used.reserved += max(0, reserved_now - reserved)

    def as_json(self) -> JsonObject:
        return {name: asdict(used) for name, used in self.used.items()}


def _at_rest() -> tuple[int, int]:
    """Allocated and reserved bytes once the device is idle."""
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
