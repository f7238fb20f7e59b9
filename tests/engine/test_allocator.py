"""What a pass frees stays with the process, on Linux's usual C library."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from ramet.engine.allocator import keep_freed

_PROGRAM = """
import resource, threading, torch
from ramet.engine.allocator import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def passes():
    for turn in range(4):
        before = faults()
        held = [torch.zeros(n << 20, dtype=torch.uint8) for n in (7, 21, 11, 3)]
        del held
    print(faults() - before)

assert keep_freed()
passes()
thread = threading.Thread(target=passes)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_pages_are_faulted_in_once() -> None:
    """42 MiB are 10752 pages; a few may be other threads'."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert [int(line) < 500 for line in done.stdout.split()] == [True, True]


@dataclass
class OlderLibrary:
    """It takes no threshold for mappings above `most`."""

    most: int
    told: list[tuple[int, int]] = field(default_factory=list)

    def mallopt(self, what: int, value: int) -> int:
        if what == -3 and value > self.most:
            return 0
        self.told.append((what, value))
        return 1


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> OlderLibrary:
    """In place of the C library, with nothing told by the environment."""
    library = OlderLibrary(most=1 << 25)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    return library


def test_an_older_library_is_told_the_most_that_it_takes(older: OlderLibrary) -> None:
    assert keep_freed()
    assert older.told[0] == (-3, 1 << 25)
    assert {what for what, _ in older.told} == {-1, -2, -3}


def test_one_that_takes_none_is_left_alone(older: OlderLibrary) -> None:
    """Told the rest, it would stop to adapt, and give back every tensor above 128 KiB: worse than nothing."""
    older.most = 0
    assert not keep_freed()
    assert not older.told


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")]
)
def test_what_the_user_told_it_stays(
    older: OlderLibrary, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert not keep_freed()
    assert not older.told
