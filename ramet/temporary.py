"""Directories of this process, for files whose usual place cannot be written, and for files that are not whole yet.

The process removes them. A process that is killed cannot: the next one that makes such a directory removes those whose
processes are gone. A lock, which ends with its process, shows which ones are.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "ramet-for-now-"


@functools.cache
def temporary_directory() -> Path:
    """Make the directory on the first call, for its user alone. Raises OSError."""
    made, lock = _made(Path(tempfile.gettempdir()), _PREFIX)
    atexit.register(_remove, made, lock, os.getpid())
    return made


@contextmanager
def scratch_directory(root: Path, prefix: str) -> Iterator[Path]:
    """A directory below `root`, which is removed at the end with what it holds. Raises OSError."""
    made, lock = _made(root, prefix)
    try:
        yield made
    finally:
        _remove(made, lock, os.getpid())


def _made(root: Path, prefix: str) -> tuple[Path, int]:
    """A new directory and what holds it, once those that were left behind are gone."""
    for left in _left_behind(root, prefix):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    while (lock := _lock(made)) is None:  # another process has just taken it for one that was left behind
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    return made, lock


def _left_behind(root: Path, prefix: str) -> Iterator[Path]:
    """Directories of this user whose processes are gone, each locked while the caller removes it."""
    for path in root.glob(f"{prefix}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and (lock := _lock(path)) is not None:
                yield path
                os.close(lock)


def _lock(directory: Path) -> int | None:
    """A descriptor that holds a directory, as long as the process lives; None where another does, or it is gone."""
    try:
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), directory.lstat()):
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(held)
    return None


def _remove(directory: Path, lock: int, process: int) -> None:
    """Remove the directory, but not from a fork, whose parent still uses it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
