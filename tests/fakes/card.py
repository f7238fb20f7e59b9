"""A card that is not there: Triton compiles for sm_90, and launches are counted.

`python card.py [ahead]` launches some kernels, with "ahead" compiled ahead, and prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ramet.errors import EngineFault
from ramet.ops.kernels.triton import compile_ahead

launches: Counter[str] = Counter()
loaders: set[str] = set()
misses: list[bool] = []


class Loader:
    """Stands for CudaUtils."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10}

    def load_binary(self, name: str, *_: Any) -> tuple[object, object, int, int, int]:
        loaders.add(threading.current_thread().name.rpartition("_")[0])
        return object(), object(), 32, 0, 1024


class Launcher:
    """Stands for CudaLauncher."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.name = metadata.name

    def __call__(self, *_: Any) -> None:
        launches[self.name] += 1


class Card:
    """Stands for CudaDriver."""

    utils, launcher_cls = Loader(), Launcher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@triton.jit
def twice(x: tl.tensor, n: tl.tensor, block: tl.constexpr, sign: tl.constexpr) -> None:
    i = tl.arange(0, block)
    tl.store(x + i, tl.load(x + i, i < n) * (2 if sign is None else sign), i < n)


@triton.jit
def broken(x: tl.tensor, block: tl.constexpr) -> None:
    tl.store(x + tl.arange(0, block), nothing_of_this_name)  # noqa: F821


def launch(x: torch.Tensor) -> None:
    """Five kinds: n is 1, a multiple of 16 and neither, blocks of two sizes, an address that 16 does not divide."""
    for n, block in ((1, 16), (16, 16), (17, 16), (17, 32)):
        twice[(1,)](x, n, block=block, sign=None)
    twice[(1,)](x[1:], 3, block=16, sign=2.5)


def main(ahead: bool) -> None:
    driver.set_active(Card())
    knobs.compilation.listener = lambda *, cache_hit, **_: misses.append(not cache_hit)
    x, cpu = torch.zeros(64), torch.device("cpu")
    n_made = compile_ahead([lambda: launch(x)] * 2, cpu, progress=True) if ahead else 0
    before = {"launches": sum(launches.values()), "compilations": len(misses)}
    launch(x)
    print(json.dumps({
        "made": n_made, "before": before, "launches": launches["twice"], "compilations": len(misses),
        "misses": sum(misses), "left": compile_ahead([lambda: launch(x)], cpu), "loaders": sorted(loaders),
        "failure": failure(x),
    }))  # fmt: skip


def failure(x: torch.Tensor) -> str:
    try:
        compile_ahead([lambda: broken[(1,)](x, block=16)], torch.device("cpu"))
    except EngineFault as error:
        return str(error)
    return ""


if __name__ == "__main__":
    assert "TRITON_INTERPRET" not in os.environ
    main(sys.argv[1:] == ["ahead"])
