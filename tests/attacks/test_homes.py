"""Users without a home, a name or a place to keep anything: commands work, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner
from fixtures.tiny_engine import checkpoint

from ramet import cli
from ramet.engine.settings import EngineSettings
from ramet.errors import CheckpointError, InvalidRequest
from ramet.ops.native import build
from ramet.weights.locate import locate

ROOT = Path(__file__).parents[2]
HOLD = """
import signal
import time
from ramet import cli
from ramet.temporary import temporary_directory
def load(*_, **__):
    made = temporary_directory()
    (made / "kept").write_text("a")
    print(made, flush=True)
    time.sleep(seconds)
    raise SystemExit(0)
seconds = {seconds}
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a parent may have set aside
cli.load_engine = load
cli.main(["decide", "--state", "a", "--noul", "q=Is it?"])
"""


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has a temporary directory and no other place."""
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(tmp_path / "temporary"), "XDG_CACHE_HOME": str(tmp_path / "file")}  # fmt: skip


def held(environment: dict[str, str], seconds: int = 600) -> tuple[subprocess.Popen[str], Path]:
    """A process with a temporary directory, and that."""
    command = [sys.executable, "-c", HOLD.format(seconds=seconds)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize(("end", "status"), [(None, 0), (signal.SIGTERM, 143), (signal.SIGINT, 1)])
def test_nothing_stays_where_a_process_ends(nowhere: dict[str, str], end: signal.Signals | None, status: int) -> None:
    process, made = held(nowhere, 600 if end else 0)
    if end:
        assert (made / "kept").exists()
        process.send_signal(end)
    process.communicate()
    assert process.returncode == status
    assert [*Path(nowhere["TMPDIR"]).iterdir()] == []


def test_what_a_killed_process_leaves_goes_with_the_next(nowhere: dict[str, str]) -> None:
    """And what others, or processes that live, have there stays."""
    place = Path(nowhere["TMPDIR"])
    (place / "ramet-theirs").mkdir()
    (place / "ramet-for-now-link").symlink_to(place / "ramet-theirs")
    living, kept = held(nowhere)
    killed, left = held(nowhere)
    killed.kill()
    killed.communicate()
    assert left.exists()
    held(nowhere, 0)[0].communicate()
    assert not left.exists()
    assert (kept / "kept").exists()
    living.terminate()
    living.communicate()
    assert {file.name for file in place.iterdir()} == {"ramet-theirs", "ramet-for-now-link"}


def unknown(environment: dict[str, str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command of a user whose number has no name: seen so from within; files are those of the user who runs tests."""
    without = {name: value for name, value in environment.items() if name != "XDG_CACHE_HOME"}
    nobody = ["unshare", "--user", "--map-user=54321", sys.executable]
    if subprocess.run([*nobody, "-c", ""], capture_output=True, env=without, check=False).returncode:
        pytest.skip("no unshare with users here")
    return subprocess.run([*nobody, *words], capture_output=True, text=True, env=without, check=False, cwd="/")


def test_a_user_without_a_name(nowhere: dict[str, str]) -> None:
    model = str(checkpoint("qwen3"))
    asked = ["--model", model, "--state", "It is late.", "--noul", "a=Is it?", "--json"]
    environment = nowhere | {"RAMET_NATIVE": "0"}
    done = unknown(environment, ["-m", "ramet", "decide", *asked])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answers"]["a"]["type"] == "noul"
    told = unknown(environment, ["-m", "ramet", "doctor"])
    assert told.returncode in (0, 1), told.stderr
    assert "kernel cache" in told.stdout
    assert "nothing is kept for the next start" in told.stderr
    missing = unknown(environment, ["-m", "ramet", "decide", "--model", "owner/repo", *asked[2:]])
    assert missing.stderr.splitlines() == [
        "Error: owner/repo has no place to be kept: this user has no home directory; set HF_HOME to one"
    ]
    for each in (done, told, missing):
        assert "Traceback" not in each.stderr
    assert [*Path(nowhere["TMPDIR"]).iterdir()] == []


def test_a_user_without_a_name_serves(nowhere: dict[str, str]) -> None:
    script = f"""
import os, signal, subprocess, sys
command = [sys.executable, "-m", "ramet", "serve", {str(checkpoint("qwen3"))!r}, "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
print(next(line for line in server.stderr if "answers" not in line and "serving" in line))
server.send_signal(signal.SIGTERM)
print(server.stderr.read())
sys.exit(server.wait())
"""
    done = unknown(nowhere | {"RAMET_NATIVE": "0"}, ["-c", script])
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert [*Path(nowhere["TMPDIR"]).iterdir()] == []


def test_no_place_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for what is temporary: kernels are left out, and a digest is not remembered."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "file"))

    def none() -> Path:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(build, "temporary_directory", none)
    with pytest.raises(OSError, match="No usable temporary"):
        build.cache_directory()
    from ramet.weights import digest, named

    model = tmp_path / "model"
    model.write_bytes(b"abc")
    monkeypatch.setattr(digest, "REMEMBERED", 1)
    monkeypatch.setattr(digest, "YOUNG_S", -1.0)
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: none())  # nor beside it
    with digest.Hashing([model]) as hashing:
        assert len(hashing.results()) == 1
    with pytest.raises(CheckpointError, match=r"qwen2.5-0.5b cannot be joined: No usable .* RAMET_CACHE"):
        named.named_file("qwen2.5-0.5b")


EMPTY = ("disk_cache", "latency_cache")


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("value", ["", " ", "a\0b"])
def test_a_directory_without_a_name(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{name}: .* names no directory: name one, or leave it away"):
        EngineSettings(chunk_size="auto", **{name: value})


@pytest.mark.parametrize("source", ["", " "])
def test_a_model_without_a_name(source: str) -> None:
    with pytest.raises(CheckpointError, match="no file or directory"):
        locate(source)


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (["--disk-cache", ""], {}, "disk_cache"),
        (["--latency-cache", ""], {}, "latency_cache"),
        (["--api-key", ""], {}, "--api-key: the key is empty"),
        (["--api-key", " "], {}, "--api-key: the key is empty"),
        ([], {"RAMET_API_KEY": ""}, "RAMET_API_KEY: the key is empty"),
        (["--api-key-file", ""], {}, "--api-key-file"),
        (["--host", ""], {}, "--host"),
        (["--name", ""], {}, "name: is empty"),
        (["--alias", ""], {}, "--alias"),
        (["--model", ""], {}, "no file or directory"),
        (["--device", ""], {}, "device"),
        (["--chunk-tiers", ""], {}, "chunk_tiers"),
        (["--chunk-size", ""], {}, "chunk_size"),
        (["--release-date", ""], {}, "--release-date"),
        (["--op", ""], {}, "--op"),
    ],
)
def test_settings_that_say_nothing(
    words: list[str], variables: dict[str, str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(*_: object) -> None:
        raise AssertionError("it is served")

    monkeypatch.setattr("ramet.server.serve", served)
    monkeypatch.chdir(tmp_path)
    model = [] if "--model" in words else [str(checkpoint("qwen3"))]
    result = CliRunner().invoke(cli.main, ["serve", *model, "--port", "0", *words], env=variables)
    assert result.exit_code in (1, 2), result.stderr
    assert isinstance(result.exception, SystemExit)
    assert told in result.stderr.splitlines()[-1]
    assert [*tmp_path.iterdir()] == []
