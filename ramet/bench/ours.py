"""How Ramet's own server is started for a comparison."""

from __future__ import annotations

import sys
from pathlib import Path

from ramet.bench.bodies import MODEL
from ramet.bench.server import Server

_RAMET = "from ramet.cli import main; main()"


def server(checkpoint: Path, n_threads: int, cache: Path) -> Server:
    """`ramet serve` out of this environment, with its defaults; what it compiles goes to `cache`."""
    command = [
        sys.executable, "-c", _RAMET, "serve", "--model", str(checkpoint), "--dtype", "bfloat16",
        "--alias", MODEL, "--host", "127.0.0.1", "--port", "{port}", "--no-access-log",
    ]  # fmt: skip
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(n_threads), "RAMET_CACHE": str(cache)}
    return Server("ours", command, env)
