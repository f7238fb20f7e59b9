"""torch.cuda's clock and allocator as far as the bench asks for them, driven by a test."""

from __future__ import annotations

from typing import Any

import pytest
import torch


class Card:
    """now: milliseconds. A call of `work` takes time, and keeps and touches memory."""

    def __init__(self) -> None:
        self.now, self.allocated, self.reserved, self.peak, self.synced = 0.0, 0, 0, 0, 0

    def work(self, ms: float = 0.0, keeps: int = 0, touches: int = 0) -> None:
        self.now += ms
        self.peak = max(self.peak, self.allocated + keeps + touches)
        self.allocated += keeps
        self.reserved = max(self.reserved, self.peak)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        card = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at = -1.0

            def record(self) -> None:
                self.at = card.now

            def synchronize(self) -> None:
                assert self.at >= 0

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        made: dict[str, Any] = {
            "is_available": lambda: True,
            "Event": Event,
            "synchronize": lambda device=None: None,
            "memory_allocated": lambda: card.allocated,
            "memory_reserved": lambda: card.reserved,
            "max_memory_allocated": lambda: card.peak,
            "reset_peak_memory_stats": lambda: setattr(card, "peak", card.allocated),
        }
        for name, value in made.items():
            monkeypatch.setattr(torch.cuda, name, value)
