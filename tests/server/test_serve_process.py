"""`ramet serve` and its neighbours as processes of their own: what only an end of a process shows, and what a user
without a home, or a name, has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("torch")

from fixtures.tiny_engine import checkpoint, tiny_engine
from oracles.answers import assert_close

from ramet.request import DecisionRequest

HERE = Path(__file__).parents[1]
STATE = "The tenant wrote that the heating failed again on Sunday night. " * 12
BODY = {
    "state": STATE,
    "questions": {"a": {"type": "choice", "instructions": "About?", "criteria": {"heating": None, "rent": None}}},
}
NOBODY = """
import os, pwd, sys
def unknown(*_): raise KeyError("getpwuid(): uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
from ramet.cli import main
main(prog_name="ramet")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, dict[str, Any]]]:
    """After each way to end: the files on disk, and what an engine on them answers."""
    ways = {"SIGTERM": (signal.SIGTERM, []), "SIGINT": (signal.SIGINT, []),
            "memory": (signal.SIGTERM, ["--memory-cache-bytes", "1000000"])}  # fmt: skip
    found = {}
    for name, (number, words) in ways.items():
        directory = tmp_path_factory.mktemp(name)
        first = _served(directory, number, words)
        assert first["usage"]["x_cached_tokens"] == 0
        n_files = sum(1 for file in directory.rglob("*") if file.is_file())
        with tiny_engine(disk_cache=directory, cache_bytes=3_000_000) as engine:
            found[name] = n_files, engine.decide(DecisionRequest.parse(BODY)).model_dump(mode="json")
        assert_close(found[name][1]["answers"], first["answers"], 1e-4)
    return found


def _served(directory: Path, number: int, words: Sequence[str]) -> dict[str, Any]:
    """A decision of a server that then gets a signal."""
    model = str(checkpoint("qwen3"))
    cache = ["--disk-cache", str(directory), "--cache-bytes", "3000000"]
    command = [sys.executable, "-m", "ramet", "serve", model, "--port", "0", "--dtype", "float32", *cache, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE.parent, start_new_session=True
    )
    try:
        assert process.stderr is not None
        url = next(line for line in process.stderr if "answers at" in line).split("answers at ")[1].strip()
        reply = httpx2.post(f"{url}/v1/systemone", json=BODY)
        process.send_signal(number)
        out, err = process.communicate()
    finally:
        process.kill()
    assert reply.status_code == 200, reply.text
    assert (process.returncode, out) == (130 if number == signal.SIGINT else 0, "")
    assert "Traceback" not in err
    assert "Aborted" not in err
    answer: dict[str, Any] = reply.json()
    return answer


def test_what_is_kept_is_written_whichever_way_it_ends(kept: dict[str, tuple[int, dict[str, Any]]]) -> None:
    n_files = {name: n for name, (n, _) in kept.items()}
    n_cached = {name: answer["usage"]["x_cached_tokens"] for name, (_, answer) in kept.items()}
    assert n_files["SIGTERM"] > 10
    assert n_cached["SIGTERM"] > 100
    assert len(set(n_files.values())) == len(set(n_cached.values())) == 1


@pytest.fixture
def nobody(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whom the system does not know. Kernels are left out: nothing keeps them."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path),
            "RAMET_NATIVE": "0"}  # fmt: skip


def test_a_user_without_a_home(nobody: dict[str, str]) -> None:
    words = ["decide", "--model", str(checkpoint("qwen3")), "--state", "It is late.", "--noul", "a=Is it?", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, *words], capture_output=True, text=True, env=nobody, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answers"]["a"]["type"] == "noul"
    assert "Traceback" not in done.stderr


def test_a_directory_of_a_user_that_is_unknown(nobody: dict[str, str]) -> None:
    words = ["decide", "--model", "~/models/x", "--state", "a", "--noul", "a=Is it?"]
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, *words], capture_output=True, text=True, env=nobody, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: '~/models/x' is no file or directory")
