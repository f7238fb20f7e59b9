"""`ramet warmup`: what is compiled, and what becomes of bundles."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine

from ramet import cli

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # which the test may set, and is undone


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200, as far as this command looks."""
    from ramet.ops import kernels
    from ramet.ops.kernels import kind

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 37, 1 << 37))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kind, "version", lambda package: "3.6.0")
    monkeypatch.setattr(kernels, "compile_host", lambda directory: (directory / "host.so").write_bytes(b"C++"))


def warmup(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["warmup", *arguments], catch_exceptions=False)


def test_on_a_cpu_no_model_is_loaded(cli_engine: CliEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.ops.native.status", lambda: (True, "avx2, one thread"))
    result = warmup("--device", "cpu")
    assert (result.exit_code, result.stdout, cli_engine.n_loads) == (0, "", 0)
    assert result.stderr == "the CPU's kernels are compiled, for any model: avx2, one thread\n"


def test_kernels_that_do_not_compile_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.ops.native.status", lambda: (False, "not compiled: no C++ compiler"))
    result = warmup("--device", "cpu")
    assert (result.exit_code, result.stderr) == (1, "Error: the CPU's kernels are not compiled: no C++ compiler\n")


def test_a_cpu_makes_no_bundle(cli_engine: CliEngine, tmp_path: Path) -> None:
    result = warmup("--device", "cpu", "--out", str(tmp_path / "b"))
    assert result.exit_code == 2
    assert "--out is for a GPU's kernels" in result.stderr
    assert not (tmp_path / "b").exists()


def test_from_one_machine_to_another(
    card: None, cli_engine: CliEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.ops import kernels

    entry = kernels.use("cuda") / ("A" * 52)
    entry.mkdir()
    (entry / "k.cubin").write_bytes(b"code")
    file = tmp_path / "b"
    result = warmup("-m", "dir", "--device", "cuda", "--batch-invariant", "--out", str(file))
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert (cli_engine.source, cli_engine.options) == ("dir", {"device": "cuda", "batch_invariant": True})
    assert (len(cli_engine.received), cli_engine.closed) == (1, True)
    assert f"compiled for capability 9.0, in {entry.parent}" in result.stderr
    assert f"{file}: 2 files" in result.stderr

    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "elsewhere"))
    for device, told in (("cuda", "9.0, in"), ("cpu", "9.0, which is not here to compare, in")):
        result = warmup("--device", device, "--in", str(file))
        assert (result.exit_code, cli_engine.n_loads) == (0, 1)
        assert f"2 files for cards of capability {told} {tmp_path / 'elsewhere'}" in result.stderr
    assert (kernels.use("cuda") / entry.name / "k.cubin").read_bytes() == b"code"

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    result = warmup("--device", "cuda", "--in", str(file))
    assert (result.exit_code, result.stderr) == (2, f"Error: {file}: made for capability 9.0, here 8.0\n")


def test_without_out_the_cache_is_filled_alone(card: None, cli_engine: CliEngine) -> None:
    result = warmup("--device", "cuda")
    assert (result.exit_code, cli_engine.n_loads, len(cli_engine.received)) == (0, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--in", __file__, "--out", "b"], "give one of them"),
        (["--out", "no/such/directory/b"], "there is no directory"),
        (["--in", "no-such-file"], "does not exist"),
        (["--in", __file__], "no bundle of kernels"),
        (["--device", "nonsense"], "is no device"),
    ],
)
def test_refusals(arguments: list[str], told: str, cli_engine: CliEngine) -> None:
    result = warmup(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert cli_engine.n_loads == 0


def test_a_bundle_holds_nobody_elses_kernels(
    card: None, cli_engine: CliEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    result = warmup("--device", "cuda", "--out", str(tmp_path / "b"))
    assert (result.exit_code, cli_engine.n_loads) == (2, 0)
    assert f"TRITON_CACHE_DIR names {tmp_path}" in result.stderr
