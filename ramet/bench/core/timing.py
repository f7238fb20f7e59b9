"""How one run is timed: by the clock of the host, or by the device's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ramet.tree import FloatArray

Answer = FloatArray | None  # the labels' logits [questions, columns] of all prompts, or nothing that could be compared
Call = Callable[[], Answer]
Run = Callable[[], tuple[float, Answer]]  # milliseconds, and the answer


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note how long the block takes."""
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def by_clock(call: Call) -> Run:
    """From the call to what it returns, on the host."""

    def run() -> tuple[float, Answer]:
        start = time.perf_counter()
        answer = call()
        return (time.perf_counter() - start) * 1e3, answer

    return run


def on_device(call: Callable[[], object], device: torch.device, fetch: Call = lambda: None) -> Run:
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

    def on_host() -> tuple[float, Answer]:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3, fetch()

    return on_gpu if device.type == "cuda" else on_host
