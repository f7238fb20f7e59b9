"""Inbox: the way of requests from their callers' threads to the engine's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from ramet.engine.job import Job
from ramet.engine.patience import Patience
from ramet.errors import Cancelled, EngineFault, Overloaded


class Inbox:
    """At most `max_open` requests are open at a time. `fault`: after which no more are taken, None while the engine
    works. `has_gone`: whether a caller has cancelled since somebody set this; `n_cancelled`: how many have."""

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self.fault: EngineFault | None = None
        self.is_closed = self.has_gone = False
        self.n_open = self.n_cancelled = 0
        self._patience, self._lock = Patience(), threading.Lock()
        self._arrived: SimpleQueue[Job | Callable[[], None] | None] = SimpleQueue()

    def check_open(self) -> None:
        """Raise where no further request is taken: also before a request is planned, which costs time."""
        if self.is_closed:
            raise Cancelled("the engine is closed")
        if self.fault is not None:
            raise self.fault
        if self.n_open >= self.max_open:
            message = f"{self.n_open} requests are waiting; at most {self.max_open} may"
            raise Overloaded(message, retry_after_s=self._patience.refused())

    def put(self, job: Job) -> None:
        """Hand a job over. Raises as `check_open`."""
        with self._lock:  # held to the end, so that nothing arrives once the engine has ended
            self.check_open()
            self._patience.admitted()
            self.n_open += 1
            job.future.add_done_callback(self._settled)
            self._arrived.put(job)

    def call(self, task: Callable[[], None]) -> None:
        """Let the engine's thread do something between two rounds, and wait until it has; nothing once it has
        ended."""
        done = Future[None]()

        def do() -> None:
            try:
                task()
            finally:
                done.set_result(None)

        with self._lock:
            if self.is_closed or self.fault is not None:
                return
            self._arrived.put(do)
        done.result()

    def close(self) -> None:
        """Take no more, and wake the engine's thread."""
        with self._lock:
            self.is_closed = True
        self._arrived.put(None)

    def refuse(self, fault: EngineFault) -> None:
        """Take no more, since the engine has failed for good."""
        with self._lock:
            self.fault = fault

    def arrived(self, *, wait: bool) -> Iterator[Job | Callable[[], None]]:
        """What has come in; with `wait`, not before something has."""
        try:
            while True:
                found = self._arrived.get(block=wait)
                wait = False
                if found is not None:
                    yield found
                    if isinstance(found, Job) and found.future.cancelled():
                        self.has_gone = True  # no `|=`: another may go between its reading and its writing
        except Empty:
            return

    def _settled(self, future: Future[Any]) -> None:
        with self._lock:
            self.n_open -= 1
            self.n_cancelled += future.cancelled()
        if future.cancelled():
            self.has_gone = True
