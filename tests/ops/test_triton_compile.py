"""Every Triton kernel compiles for Ampere, Hopper and Blackwell, without any of these cards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
OPS = ("gated_delta", "experts", "route", "attention", "linear", "norm", "head", "conv")
MODULES = [f"ramet.ops.{op}.triton" for op in OPS]
CARDS = ("80", "90", "100")


@cache
def started() -> dict[str, Future[subprocess.CompletedProcess[str]]]:
    """As many at a time as there are cores, in processes of their own: in this one kernels may be interpreted."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = kept | {"PYTHONPATH": str(HERE.parent)}
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def compiled(module: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(HERE / "fixtures" / "triton_compile.py"), module, *CARDS]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return {module: pool.submit(compiled, module) for module in MODULES}


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile_for_cards_that_are_not_here(module: str) -> None:
    done = started()[module].result()
    assert done.returncode == 0, done.stderr[-3000:]
    found = Counter(line.split()[0] for line in done.stdout.splitlines())
    assert set(found) == {f"sm_{card}" for card in CARDS}
    assert len(set(found.values())) == 1
