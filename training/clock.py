"""Clock: what the schedule goes by."""

from __future__ import annotations

import time


class Clock:
    """Seconds since it was made, of so many until training ends. `begin` marks where training begins."""

    def __init__(self, end: float) -> None:
        self._made, self._begun, self._end = time.perf_counter(), 0.0, end

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._made

    @property
    def done(self) -> float:
        """How far training is, 0 to 1 and above."""
        return (self.seconds - self._begun) / max(self._end - self._begun, 1e-9)

    def begin(self) -> None:
        self._begun = self.seconds

    def say(self, text: str) -> None:
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)
