"""Allowance: the processors and the memory that this process may use, by affinity and the limits of its container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC, _MOUNT = Path("/proc"), Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # of memory, from where on cgroups of version 1 mean none


@dataclass(frozen=True)
class Allowance:
    """n_processors: those of the machine; n_allowed: as many as this process may run on; quota: as many as it may keep
    busy, None where nothing says it. memory: bytes of the machine; memory_limit: that it may use, None where nothing
    says it."""

    n_processors: int
    n_allowed: int
    quota: float | None
    memory: int
    memory_limit: int | None

    @property
    def n_threads(self) -> int:
        """A processor each; of a quota whole ones, for a thread that is stopped in mid-pass stops all."""
        return max(1, min(self.n_allowed, int(self.quota) if self.quota is not None else self.n_allowed))

    @property
    def n_bytes(self) -> int:
        """Of memory, for this process and the others of its container."""
        return min(self.memory, self.memory_limit) if self.memory_limit is not None else self.memory

    def processors(self) -> str:
        """For people."""
        limits = [f"{self.n_allowed} by affinity"] if self.n_allowed != self.n_processors else []
        limits += [f"{self.quota:g} by the quota of its cgroup"] if self.quota is not None else []
        return f"{self.n_processors}" + (f"; this process has {', '.join(limits)}" if limits else "")

    def bytes(self) -> str:
        """For people."""
        limit = f"; its cgroup has {_gib(self.n_bytes)}" if self.n_bytes < self.memory else ""
        return _gib(self.memory) + limit


def allowance(proc: Path = _PROC, mount: Path = _MOUNT) -> Allowance:
    """The allowance now. `proc` and `mount` are the directories of the kernel's files and of cgroups."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    quotas, limits = list(_quotas(proc, mount)), list(_memory_limits(proc, mount))
    return Allowance(
        n_processors=os.cpu_count() or 1,
        n_allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota=min(quotas, default=None),
        memory=total,
        memory_limit=min(limits, default=None),
    )


def _quotas(proc: Path, mount: Path) -> Iterator[float]:
    """Processors by each cgroup that this process is in, from its own to the outermost that can be seen."""
    for group in _groups(proc, mount, None):
        with suppress(OSError, ValueError):
            maximum, period = (group / "cpu.max").read_text().split()
            yield int(maximum) / int(period)  # "max" is no number, and no limit
    for group in _groups(proc, mount, "cpu"):
        with suppress(OSError, ValueError):
            quota = int((group / "cpu.cfs_quota_us").read_text())
            if quota > 0:
                yield quota / int((group / "cpu.cfs_period_us").read_text())


def _memory_limits(proc: Path, mount: Path) -> Iterator[int]:
    files = [(group / "memory.max") for group in _groups(proc, mount, None)]
    files += [(group / "memory.limit_in_bytes") for group in _groups(proc, mount, "memory")]
    for file in files:
        with suppress(OSError, ValueError):
            if (limit := int(file.read_text())) < _NO_LIMIT:
                yield limit


def _groups(proc: Path, mount: Path, controller: str | None) -> Iterator[Path]:
    """Directories of the cgroups that hold this process, version 2's (controller None) or those of version 1.

    A container may see its own cgroup as the root while the path names it from outside: then the root alone is found.
    """
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if (controllers == "") if controller is None else (controller in controllers.split(",")):
                inside = PurePosixPath(path.lstrip("/"))
                roots = [mount, mount / "unified"] if controller is None else [mount / controllers, mount / controller]
                yield from dict.fromkeys(root / each for root in roots for each in (inside, *inside.parents))


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.{0 if n_bytes >= 10 << 30 else 1}f} GiB"
