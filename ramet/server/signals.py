"""Signals: what SIGINT and SIGTERM do from a server's start to its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

HANDLED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """While its `with` block runs, the first of either signal begins an orderly end, and a second one ends the process
    at once with the status that shells give it (130, 143).

    The first signal calls `stop`, which raises SystemExit at the beginning, as there is nothing to finish then.
    `status` is the exit status for an orderly end: 130 after SIGINT, else 0. Only the main thread gets signals; in
    other threads this changes nothing.
    """

    status = 0

    def __init__(self) -> None:
        self._stop: Callable[[], None] = self._exit
        self._n = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @contextmanager
    def calling(self, stop: Callable[[], None]) -> Iterator[None]:
        """In the block, a first signal calls `stop`, in the main thread, and the program goes on."""
        before, self._stop = self._stop, stop
        try:
            yield
        finally:
            self._stop = before

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._n += 1
        if self._n > 1:
            os._exit(128 + number)
        self.status = 128 + number if number == signal.SIGINT else 0
        self._stop()

    def _exit(self) -> None:
        raise SystemExit(self.status)
