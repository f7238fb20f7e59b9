"""Waiting for what another thread does. No test asserts how long anything takes: what never comes is ended by
pytest's own limit (`timeout` in pyproject.toml), far above what the slowest test needs where a machine has other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable

GUARD_S = 900.0  # for threads that nothing else would end: below pytest's limit, so that its report is of what failed


def wait_until(condition: Callable[[], object], what: str = "it never happened") -> None:
    """Ask again and again, as nothing tells when it is so."""
    until = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.005)
