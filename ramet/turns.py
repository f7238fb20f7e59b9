"""Turns: a pool of threads for parsing and planning, which runs small work before large, round robin among clients."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ramet.memory import give_back

T = TypeVar("T")
HasGone = Callable[[], bool]  # whether the caller has gone meanwhile

LARGE = 1 << 16  # bytes or characters of a request, from where on it does not hold up others
PATIENCE = 16  # small ones that may overtake one that is large
IDLE_S = 10.0  # before a thread ends that has nothing to do


@dataclass(slots=True)
class _Line:
    """What waits, by client: a client's own in order, and one of each client in turn."""

    waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = field(default_factory=dict)

    def put(self, who: str, each: tuple[Future[Any], Callable[[], Any]]) -> None:
        self.waiting.setdefault(who, deque()).append(each)

    def take(self) -> tuple[Future[Any], Callable[[], Any]]:
        who = next(iter(self.waiting))
        own = self.waiting.pop(who)
        each = own.popleft()
        if own:
            self.waiting[who] = own  # behind all others
        return each

    def drop(self, who: str, future: Future[Any]) -> bool:
        """Take out what still waits; whether it did."""
        own = self.waiting.get(who, deque())
        found = next((each for each in own if each[0] is future), None)
        if found is None:
            return False
        own.remove(found)
        if not own:
            del self.waiting[who]
        return True


class Turns:
    """Runs functions in up to n_threads threads, of which large ones never take the last. These are daemons, and end
    when there is nothing to do: none keeps a process from ending. Safe to use from any thread."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._n_threads = n_threads
        self._name = name
        self._small, self._large = _Line(), _Line()
        self._arrived = threading.Condition()
        self._n_waiting = self._n_idle = self._n_running = self._n_large = self._n_overtaken = 0

    def submit(self, work: Callable[[], T], *, size: int = 0, who: str = "") -> Future[T]:
        """Run `work` when its turn has come. `size` is that of its input; `who` is the client."""
        future = Future[T]()
        with self._arrived:
            self._line(size).put(who, (future, work))
            self._n_waiting += 1
            self._arrived.notify()
            if self._n_idle < self._n_waiting and self._n_running < self._n_threads:
                self._n_running += 1
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return future

    async def run(self, work: Callable[[HasGone], T], *, size: int = 0, who: str = "") -> T:
        """As `submit`, for tasks. Cancelling the awaiting task takes the work out of its line; work that has begun
        learns of it from its HasGone."""
        gone = threading.Event()
        future = self.submit(lambda: work(gone.is_set), size=size, who=who)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            gone.set()
            with self._arrived:
                self._n_waiting -= self._line(size).drop(who, future)
            raise
        finally:
            del future  # an error of the work has this frame, whose locals would keep the error

    def _line(self, size: int) -> _Line:
        return self._large if size >= LARGE else self._small

    def _serve(self) -> None:
        while (found := self._next()) is not None:
            (future, work), is_large = found
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # its caller's to see
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del found, future, work  # an idle thread keeps nothing of what it has done
            if is_large:
                give_back()
                with self._arrived:
                    self._n_large -= 1
                    self._arrived.notify()

    def _next(self) -> tuple[tuple[Future[Any], Callable[[], Any]], bool] | None:
        """The next in turn, and whether it is large; None after a thread has waited IDLE_S for nothing."""
        with self._arrived:
            while True:
                room = bool(self._large.waiting) and self._n_large < max(1, self._n_threads - 1)
                if self._small.waiting and not (room and self._n_overtaken >= PATIENCE):
                    self._n_overtaken += room
                    self._n_waiting -= 1
                    return self._small.take(), False
                if room:
                    self._n_overtaken = 0
                    self._n_large += 1
                    self._n_waiting -= 1
                    return self._large.take(), True
                self._n_idle += 1
                came = self._arrived.wait(IDLE_S)
                self._n_idle -= 1
                if not came and not self._n_waiting:
                    self._n_running -= 1
                    give_back()
                    return None
