"""The compiled kernels as Python functions, or the reason why there are none."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from ramet.ops.native.build import FLAGS, BuildError, build, find_compiler, find_openmp, flags_for

_lock = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The kernels' C functions, and what they were built for: `isa` is "amx-bf16", "avx512-bf16", "avx512",
    "avx2", "neon" or "portable"; `openmp` the runtime whose threads they use (None: the caller's thread alone). `held`
    are the functions that take microseconds: Python's other threads wait for them, rather than they for these when they
    are done."""

    functions: ctypes.CDLL
    held: ctypes.PyDLL
    isa: str
    openmp: Path | None

    @property
    def description(self) -> str:
        threads = f"threads of {self.openmp.name}" if self.openmp else "one thread: no OpenMP runtime of torch's fits"
        return f"{self.isa}, {threads}"

    @classmethod
    def open(cls, file: Path, openmp: Path | None) -> Library:
        """Raises BuildError when the file cannot be loaded or lacks a function."""
        try:
            functions = ctypes.CDLL(str(file))
            functions.ramet_isa.restype = ctypes.c_char_p
            for name in (
                "attention", "rms_norm", "expert_norms", "join", "rotate", "gated", "sigmoid_mul", "logsumexp",
                "sample", "cut", "columns", "route", "route_grouped", "experts_sizes", "experts_pack", "experts",
                "linear_size", "linear_pack", "linear",
            ):  # fmt: skip
                getattr(functions, f"ramet_{name}").restype = None
            functions.ramet_keep.restype = ctypes.c_int32
            return cls(functions, _held(file), functions.ramet_isa().decode(), openmp)
        except (OSError, AttributeError) as e:
            raise BuildError(f"{file.name} does not load: {e}") from e


def _held(file: Path) -> ctypes.PyDLL:
    """Addresses go as plain integers."""
    functions, address, number = ctypes.PyDLL(str(file)), ctypes.c_void_p, ctypes.c_int32
    functions.ramet_pack.argtypes = (address, number, address, address)
    functions.ramet_plan.argtypes = (address, address, address, number, address)
    functions.ramet_planned.argtypes = (address,)
    functions.ramet_blocks_uncached.argtypes = (address, address, number, address)
    functions.ramet_blocks_chunks.argtypes = (address, address, address, number, address)
    functions.ramet_blocks_take.argtypes = (address, address, number, address, number, *[address] * 6)
    functions.ramet_stage.argtypes = (address, address, address, address, number, address)
    functions.ramet_lay.argtypes = (address, address, number, address, address)
    for made in (
        functions.ramet_pack, functions.ramet_planned, functions.ramet_blocks_uncached, functions.ramet_blocks_chunks,
    ):  # fmt: skip
        made.restype = None
    return functions


def pointer(x: torch.Tensor | None) -> ctypes.c_void_p:
    """Where a tensor's first element lies; null for None."""
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def library() -> Library | None:
    """The library, built and loaded on the first call; None where there is none (`status` says why)."""
    with _lock:
        return _found()[0]


def status() -> tuple[bool, str]:
    """Whether the compiled kernels are in use, and for which processor, or why not."""
    with _lock:
        found, reason = _found()
        return found is not None, reason


def compiled() -> tuple[Library | None, str]:
    """As `library` and `status`, for a host whose kernels are a card's: RAMET_NATIVE=0 turns off the CPU's kernels
    alone, and nobody is warned."""
    with _lock:
        return _compiled("1" if _wanted() == "0" else _wanted())


@functools.cache
def _found() -> tuple[Library | None, str]:
    if _wanted() == "0":
        return None, "turned off by RAMET_NATIVE=0"
    found, reason = _compiled(_wanted())
    if found is None:
        warnings.warn(f"ramet's C++ is {reason}; plain torch and numpy take several times as long", RuntimeWarning,
                      stacklevel=4)  # fmt: skip
    return found, reason


def _wanted() -> str:
    return os.environ.get("RAMET_NATIVE") or "1"


@functools.cache
def _compiled(wanted: str) -> tuple[Library | None, str]:
    try:
        found = load(FLAGS if wanted == "1" else flags_for(wanted))
    except (BuildError, OSError) as e:
        return None, f"not compiled: {e}"
    return found, found.description


def load(flags: tuple[str, ...] = FLAGS, directory: Path | None = None) -> Library:
    """Build and load, with threads where possible. Raises BuildError."""
    compiler = find_compiler()
    openmp = find_openmp(compiler)
    if openmp is not None:
        try:
            return Library.open(build(compiler, openmp, flags, directory), openmp)
        except BuildError:
            pass  # a runtime that lacks a function: without threads it may still do, and status() says so
    return Library.open(build(compiler, None, flags, directory), None)
