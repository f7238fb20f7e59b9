"""What a figure was measured on."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from pathlib import Path

from ramet.machine import allowance
from ramet.version import __version__

_UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def describe(n_threads: int) -> dict[str, str]:
    """Processor, units, threads, versions and commit, for people and for the JSON."""
    import torch

    return {
        **processor(),
        "threads": str(n_threads),
        **gpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ramet": __version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def processor() -> dict[str, str]:
    """The processor, its units, and what of the machine this process has."""
    cpuinfo = _cpuinfo()
    ours = allowance()
    flags = cpuinfo.get("flags", "").split()
    return {
        "cpu": cpuinfo.get("model name", platform.processor() or platform.machine()),
        "units": " ".join(u for u in _UNITS if u in flags) or "unknown",
        "cores": f"{ours.n_allowed if ours.quota is None else min(ours.n_allowed, ours.quota):g}",
        "memory": f"{ours.n_bytes / 2**30:.0f} GiB",
    }


def commit() -> str:
    """The commit of the checkout that this file lies in, "+" behind it where files differ; "unknown" elsewhere."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    here = Path(__file__).parent

    def ask(*words: str) -> str | None:
        done = subprocess.run([git, *words], cwd=here, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout.strip() if done.returncode == 0 else None

    head = ask("rev-parse", "--short", "HEAD")
    # Installed into somebody else's checkout, the commit found would be theirs.
    if not head or ask("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return "unknown"
    return head + ("+" if ask("status", "--porcelain", "--untracked-files=no") else "")


def gpu() -> dict[str, str]:
    """The first one, where there is one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    memory = f"{properties.total_memory / 2**30:.0f} GiB"
    return {"gpu": f"{properties.name}, {properties.multi_processor_count} processors, {memory}"}


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
