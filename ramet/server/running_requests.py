"""RunningRequests: what a server that stops waits for, and then cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Scope

from ramet.server.errors import Unavailable


class RunningRequests:
    """The tasks that answer requests. A server that stops cancels those that are left, and each answers with a 503."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()

    @classmethod
    def of(cls, scope: Scope) -> RunningRequests:
        """The running requests of the application that received this one."""
        running = scope["app"].state.running
        assert isinstance(running, RunningRequests)
        return running

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the current task in while the block runs. Raises Unavailable once the server waits no longer."""
        task = asyncio.current_task()
        assert task is not None
        if self._ended.is_set():
            raise Unavailable(_STOPPED)
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._ended.is_set() and task.uncancel() == 0:
                raise Unavailable(_STOPPED) from None
            raise
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """Cancel all that run; a request that begins from now on ends at once."""
        self._ended.set()
        for task in self._tasks:
            task.cancel()


_STOPPED = "the server stops, and this was not done in the time that it waits (drain_s); ask again, there or elsewhere"
