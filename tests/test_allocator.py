"""What a pass frees stays with the process, on Linux's usual C library."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert [int(line) < 500 for line in done.stdout.split()] == [True, True]
