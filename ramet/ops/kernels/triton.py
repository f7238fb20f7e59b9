"""Compiling kernels ahead: a pass is run once in which launches are noted instead, then all are compiled at a time.

What a launch compiles for depends on its arguments' types, on which of them divide by 16, and on constants: only the
pass itself knows that, so there is no list to keep. Compiling is left to threads: Triton lets others run while it
works, and the assembler and the C compiler are processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped]
from triton import knobs
from triton.runtime import driver

from ramet.errors import EngineFault
from ramet.machine import allowance

MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch that wants compiling: Triton's function, and in Triton's own words what to compile it for."""

    function: Any
    data: str

    def compile(self, device: torch.device) -> None:
        """From the cache on disk or anew, with its launcher, and load it onto the device. Raises EngineFault."""
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device.index or 0)  # each thread has its own
            self.function.preload(self.data).run  # noqa: B018 - makes the launcher and loads the binary
        except Exception as error:  # whatever a compiler raises: the kernel and the remedy are worth more
            raise EngineFault(f"kernel {self.function.__name__} does not compile: {_told(error)}") from error


def compile_ahead(passes: Iterable[Callable[[], object]], device: torch.device, *, progress: bool | None = None) -> int:
    """Compile and load what `passes` launch and this process has not compiled yet; returns how many kernels that was.

    Each pass is run once on the device. Kernels that must be compiled first are not launched, so that what the pass
    computes is garbage: it must not wait for a value, and nothing of it may be kept. `progress`: None shows a bar on a
    terminal only. Raises EngineFault.
    """
    _check_driver()
    noted = _noted(passes)
    shown = None if progress is None else not progress  # tqdm's None: only on a terminal
    with (
        tqdm(total=len(noted), desc="Compiling kernels", unit="kernel", disable=shown) as bar,
        ThreadPoolExecutor(min(MOST_THREADS, allowance().n_threads), "ramet-compile") as pool,
    ):
        jobs = [pool.submit(each.compile, device) for each in noted]
        try:
            for job in as_completed(jobs):
                job.result()
                bar.update()
        finally:
            pool.shutdown(cancel_futures=True)
    return len(noted)


def _check_driver() -> None:
    """Have Triton find the card, for which it compiles a module of its own where none is in the cache."""
    try:
        driver.active.get_current_target()
    except Exception as error:  # it has many ways to fail, a missing C compiler among them
        raise EngineFault(f"Triton cannot use the card: {_told(error)}") from error


def _noted(passes: Iterable[Callable[[], object]]) -> list[Noted]:
    found: dict[tuple[int, str], Noted] = {}

    def note(*, key: str, fn: Any, compile: Any, **_: Any) -> bool:  # noqa: A002 - the name that Triton calls it by
        found[id(fn.jit_function), key] = Noted(fn.jit_function, compile["specialization_data"])
        return True  # neither compile nor launch

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        for run in passes:
            run()
    finally:
        knobs.runtime.jit_cache_hook = before
    return list(found.values())


def _told(error: Exception) -> str:
    """A compiler's message on one line, the beginning of a long one."""
    return " ".join(str(error).split())[:400] or type(error).__name__
