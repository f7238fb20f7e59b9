"""What of a machine is ours, by the files in which kernels tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.machine import Allowance, allowance

CASES = {
    "version 2, its own and one around it": (
        "0::/outer/inner\n",
        {"outer/inner/cpu.max": "150000 100000", "outer/cpu.max": "400000 100000", "cpu.max": "max 100000",
         "outer/inner/memory.max": "max", "outer/memory.max": "1073741824"},
        (1.5, 1 << 30),
    ),
    "version 2, the one around it is smaller": (
        "0::/outer/inner\n", {"outer/inner/cpu.max": "400000 100000", "outer/cpu.max": "50000 100000"}, (0.5, None)
    ),
    "version 2, a container that sees its own as the root": (
        "0::/\n", {"cpu.max": "200000 100000", "memory.max": "4096"}, (2.0, 4096)
    ),
    "version 2, a path from outside the container": ("0::/docker/abc\n", {"cpu.max": "300000 100000"}, (3.0, None)),
    "version 2 beside version 1": ("1:name=systemd:/\n0::/\n", {"unified/memory.max": "8192"}, (None, 8192)),
    "version 1": (
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
        {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000", "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
         "memory/docker/abc/memory.limit_in_bytes": "2147483648", "memory/memory.limit_in_bytes": str(2**63 - 4096)},
        (2.5, 2 << 30),
    ),
    "version 1, from outside, mounted by another name": (
        "3:cpuacct,cpu:/docker/abc\n",
        {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"},
        (2.0, None),
    ),
    "no limit": (
        "4:memory:/\n3:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000",
         "memory/memory.limit_in_bytes": str(2**63 - 4096)},
        (None, None),
    ),
    "what nobody understands": ("0::/\n", {"cpu.max": "much", "memory.max": ""}, (None, None)),
    "none": (None, {}, (None, None)),
}  # fmt: skip


@pytest.mark.parametrize(("cgroup", "files", "expected"), CASES.values(), ids=CASES)
def test_limits(
    tmp_path: Path, cgroup: str | None, files: dict[str, str], expected: tuple[float | None, int | None]
) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    if cgroup is not None:
        (proc / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(content + "\n")
    found = allowance(proc, mount)
    assert (found.quota, found.memory_limit) == expected
    assert found.n_bytes == min(found.memory, expected[1] or found.memory)


@pytest.mark.parametrize(
    ("n_allowed", "quota", "n_threads"),
    [(8, None, 8), (8, 2.0, 2), (8, 2.9, 2), (8, 0.5, 1), (2, 16.0, 2), (1, None, 1)],
)
def test_threads_go_by_the_least_of_them(n_allowed: int, quota: float | None, n_threads: int) -> None:
    assert Allowance(64, n_allowed, quota, 1 << 40, None).n_threads == n_threads


def test_words() -> None:
    held = Allowance(64, 8, 2.5, 64 << 30, 3 << 29)
    assert held.processors() == "64; this process has 8 by affinity, 2.5 by the quota of its cgroup"
    assert held.bytes() == "64 GiB; its cgroup has 1.5 GiB"
    free = Allowance(4, 4, None, 64 << 30, None)
    assert (free.processors(), free.bytes()) == ("4", "64 GiB")


def test_threads_and_the_cache_of_an_engine_go_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from ramet.engine import settings

    monkeypatch.setattr(settings, "allowance", lambda: Allowance(64, 64, 2.0, 1 << 40, 1 << 30))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 32)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resolved = settings.EngineSettings(device="cpu").resolved()
    assert (resolved.threads, resolved.cache_bytes) == (2, 1 << 27)
    assert settings.EngineSettings(device="cpu", threads=5).resolved().threads == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "32")
    assert settings.EngineSettings(device="cpu").resolved().threads == 32
