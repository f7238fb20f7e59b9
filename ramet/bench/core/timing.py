"""How one run is timed: by the clock of the host, or by the device's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch

from ramet.tree import FloatArray

S = TypeVar("S")
T = TypeVar("T")
Answer = FloatArray | None  # the labels' logits [questions, columns] of all prompts, or nothing that could be compared
Run = Callable[[], tuple[float, Answer]]  # milliseconds, and the answer


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note how long the block takes."""
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def clocked(call: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds from a call to its return, on the host, and what it returned."""
    started = time.perf_counter()
    answer = call()
    return (time.perf_counter() - started) * 1e3, answer


def on_device(call: Callable[[], object], device: torch.device, fetch: Callable[[], Answer] = lambda: None) -> Run:
    """What `call` takes of the device: on a GPU between two events, nothing else being queued; on a CPU by the clock.
    `fetch` then gives the answer, and is not timed."""

    def on_gpu() -> tuple[float, Answer]:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        started.record()
        call()
        ended.record()
        ended.synchronize()
        return started.elapsed_time(ended), fetch()

    return on_gpu if device.type == "cuda" else lambda: (clocked(call)[0], fetch())


def closed_loop(send: Callable[[S], T], items: Sequence[S], n_clients: int) -> tuple[float, list[float], list[T]]:
    """Items a second, and the milliseconds and the answer of each, of `n_clients` that send the next item as soon as
    they are answered. Raises what `send` raises."""
    with ThreadPoolExecutor(n_clients) as clients:
        ms, found = clocked(lambda: list(clients.map(lambda item: clocked(partial(send, item)), items)))
    return len(items) / ms * 1e3, [ms for ms, _ in found], [answer for _, answer in found]
