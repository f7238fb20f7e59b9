"""Compiled kernels on disk: the directory of their kind, bundles, and compiling ahead on a card that is not there."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.cpu_variants import skip_without_kernels

from ramet.errors import InvalidRequest
from ramet.ops import native
from ramet.ops.kernels import Kind, compile_host, host_library, install, use, write
from ramet.ops.kernels import kind as kinds
from ramet.ops.native.build import cache_directory

HERE = Path(__file__).parents[1]
OWN_CACHE = cache_directory()
ENTRY, OTHER = "A" * 52, "B2" * 26
CONTENTS = {"k.cubin": b"\x7fELF", "k.json": b'{"shared": 0}', "k.ptx": b"text", "k.ttir": b"text"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache of its own, an H200 and Triton."""
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # which the test may set, and is undone
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kinds, "version", lambda package: "3.6.0")


@pytest.fixture
def cache() -> Path:
    """What Triton leaves: a kernel with its list, a launcher, and what a compile that was stopped left over."""
    directory = use("cuda")
    (directory / ENTRY / "tmp.pid_1_x").mkdir(parents=True)
    (directory / OTHER).mkdir()
    for name, data in CONTENTS.items():
        (directory / ENTRY / name).write_bytes(data)
    paths = {name: str(directory / ENTRY / name) for name in CONTENTS}
    (directory / ENTRY / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))
    (directory / OTHER / "launcher.cpython-312.so").write_bytes(b"\x7fELF")
    (directory / OTHER / ".77.left.so").write_bytes(b"half")
    return directory


@pytest.fixture
def bundle(cache: Path, tmp_path: Path) -> Path:
    file = tmp_path / "kernels.tar.gz"
    assert write(file, cache, Kind.of("cuda")) == 4
    return file


def test_the_directory_is_of_versions_and_card(monkeypatch: pytest.MonkeyPatch) -> None:
    first = use("cuda")
    assert os.environ["TRITON_CACHE_DIR"] == str(first)
    assert first.is_relative_to(os.environ["RAMET_CACHE"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    other = use("cuda:1")
    assert (first.name.replace("sm90", "sm80"), first.parent) == (other.name, other.parent)
    assert os.environ["TRITON_CACHE_DIR"] == str(other)
    changed = [replace(Kind.of("cuda"), **{name: "1"}) for name in Kind.__slots__]
    assert len({kind.directory for kind in [*changed, Kind.of("cuda")]}) == len(changed) + 1


def test_the_users_own_directory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere")
    assert use("cuda") == Path("/somewhere")
    assert os.environ["TRITON_CACHE_DIR"] == "/somewhere"


def test_other_sources_are_another_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "op").mkdir()
    monkeypatch.setattr(kinds, "_SOURCES", tmp_path)
    seen = set()
    for text in ("", "a", "b"):
        (tmp_path / "op" / "triton.py").write_text(text)
        seen.add(Kind.of("cuda").sources)
    assert len(seen) == 3


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "version", _not_installed)
    with pytest.raises(InvalidRequest, match="Triton is not installed"):
        Kind.here((9, 0))


def _not_installed(package: str) -> str:
    raise ModuleNotFoundError(package)


@pytest.mark.parametrize("device", ["cuda", None])
def test_a_bundle_is_found_in_another_place(
    device: str | None, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "elsewhere"))
    kind, n_files = install(bundle, device)
    assert (kind, n_files) == (Kind.of("cuda"), 4)
    directory = use("cuda")
    assert directory.is_relative_to(tmp_path / "elsewhere")
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == {f"{ENTRY}/{name}" for name in ("k.cubin", "k.json", "__grp__k.json")} | {
        f"{OTHER}/launcher.cpython-312.so"
    }
    assert (directory / ENTRY / "k.cubin").read_bytes() == CONTENTS["k.cubin"]
    listed = json.loads((directory / ENTRY / "__grp__k.json").read_text())["child_paths"]
    assert listed == {name: str(directory / ENTRY / name) for name in CONTENTS}


def test_installed_twice_and_over_what_is_there(bundle: Path, cache: Path) -> None:
    (cache / ENTRY / "k.cubin").write_bytes(b"damaged")
    for _ in range(2):
        install(bundle, "cuda")
        assert (cache / ENTRY / "k.cubin").read_bytes() == CONTENTS["k.cubin"]
        assert (cache / ENTRY / "k.ptx").exists()


@pytest.mark.parametrize("name", Kind.__slots__)
def test_another_kind_is_refused(name: str, cache: Path, tmp_path: Path) -> None:
    kind = Kind.of("cuda")
    write(tmp_path / "b", cache, replace(kind, **{name: "0.1"}))
    with pytest.raises(InvalidRequest, match=rf"made for {name} 0\.1, here {getattr(kind, name).replace('+', '.')}$"):
        install(tmp_path / "b", "cuda")


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no kernels"):
        write(tmp_path / "b", use("cuda"), Kind.of("cuda"))
    assert not (tmp_path / "b").exists()


def packed(file: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for entry, data in members:
            entry.size = len(data) if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(data))
    return file


def entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, "/etc/passwd"
    return made


def manifest(contents: dict[str, bytes], **changed: Any) -> tuple[tarfile.TarInfo, bytes]:
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    kind = {name: getattr(Kind.of("cuda"), name) for name in Kind.__slots__}
    return entry("manifest.json"), json.dumps({"format": 1, "kind": kind, "files": sums} | changed).encode()


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json", "/tmp/evil.json", f"{ENTRY}/../../evil.json", f"{ENTRY}/a/b.json", "evil.json", f"{ENTRY}/..",
        f"{ENTRY}/.hidden", f"{ENTRY}//evil.json", f"./{ENTRY}/evil.json", f"{ENTRY}/evil.json\n",
        f"{ENTRY}\\evil.json",
    ],
)  # fmt: skip
def test_no_way_out_of_the_directory(name: str, tmp_path: Path) -> None:
    file = packed(tmp_path / "b", [manifest({name: b"{}"}), (entry(name), b"{}")])
    with pytest.raises(InvalidRequest, match="has no place in a bundle"):
        install(file, "cuda")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_no_links_or_devices(kind: bytes, tmp_path: Path) -> None:
    name = f"{ENTRY}/k.cubin"
    file = packed(tmp_path / "b", [manifest({name: b""}), (entry(name, kind), b"")])
    with pytest.raises(InvalidRequest, match="has no place in a bundle"):
        install(file, "cuda")
    assert not (use("cuda") / ENTRY).exists()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (lambda n: [manifest({n: b"other"}), (entry(n), b"data")], "another checksum"),
        (lambda n: [manifest({}), (entry(n), b"data")], "other files than there are"),
        (lambda n: [manifest({n: b"data"})], "other files than there are"),
        (lambda n: [manifest({n: b"data"}, files=[n]), (entry(n), b"data")], "other files than there are"),
        (lambda n: [(entry(n), b"data"), manifest({n: b"data"})], "manifest.json does not come first"),
        (lambda n: [manifest({}, format=2)], "another format"),
        (lambda n: [manifest({}, kind={"ramet": "1"})], "not the fields"),
        (lambda n: [manifest({}, kind=dict.fromkeys(Kind.__slots__, "../.."))], "is no version"),
        (lambda n: [manifest({}, kind=dict.fromkeys(Kind.__slots__, 7))], "is no version"),
        (lambda n: [(entry("manifest.json"), b"[1")], "no bundle of kernels"),
        (lambda n: [], "does not come first"),
        (lambda n: [manifest({f"{ENTRY}/__grp__k.json": b"[]"}), (entry(f"{ENTRY}/__grp__k.json"), b"[]")], "lists"),
    ],
)
def test_damaged(members: Any, message: str, tmp_path: Path) -> None:
    file = packed(tmp_path / "b", members(f"{ENTRY}/k.cubin"))
    for device in ("cuda", None):
        with pytest.raises(InvalidRequest, match=message):
            install(file, device)
    assert not (use("cuda") / ENTRY).exists()


@pytest.mark.parametrize("part", [0, 10, 200, -40])
def test_cut_off_or_no_archive(part: int, bundle: Path) -> None:
    bundle.write_bytes(bundle.read_bytes()[:part])
    with pytest.raises(InvalidRequest, match=r"no bundle of kernels|damaged"):
        install(bundle, "cuda")


def on_the_fake_card(cache: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, str(HERE / "fakes" / "card.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of a pass's launches in threads, without launching; the disk's own are not compiled again."""
    pytest.importorskip("triton")
    found, shown = on_the_fake_card(tmp_path / "a", "ahead")
    assert found.pop("failure").startswith("kernel broken does not compile: ")
    assert found == {
        "made": 5, "before": {"launches": 0, "compilations": 5}, "launches": 5, "compilations": 5, "misses": 5,
        "left": 0, "loaders": ["ramet-compile"],
    }  # fmt: skip
    assert "Compiling kernels: 100%" in shown
    plain, _ = on_the_fake_card(tmp_path / "a")
    assert (plain["misses"], plain["launches"], plain["before"]["compilations"]) == (0, 5, 0)
    write(tmp_path / "b", tmp_path / "a", Kind.of("cuda"))
    install(tmp_path / "b", "cuda")
    installed, _ = on_the_fake_card(use("cuda"), "ahead")
    assert (installed["made"], installed["misses"]) == (5, 0)


ON_A_CARD = """
import torch
from ramet.ops.experts import reference, triton
from ramet.ops.kernels.triton import compile_ahead
cuda = torch.device("cuda")
gate_up, down = torch.randn(9, 128, 64, device=cuda) / 8, torch.randn(9, 64, 64, device=cuda) / 8
x, chosen = torch.randn(50, 64, device=cuda), torch.randn(50, 9, device=cuda).topk(3).indices
experts, given = triton.pack(gate_up, down, "silu"), (x, chosen, torch.rand(50, 3, device=cuda))
run = lambda: experts(*given)
assert compile_ahead([run, run], cuda) == 5
assert compile_ahead([run], cuda) == 0
torch.testing.assert_close(run(), reference.pack(gate_up, down, "silu")(*given), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_compiled_ahead_on_a_card(tmp_path: Path) -> None:
    for _ in range(2):  # the second time from the disk
        environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HERE.parent)}
        command = [sys.executable, "-c", ON_A_CARD]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", lambda: (None, "not compiled: no C++ compiler (c++) on the path"))


def test_a_host_without_a_compiler_is_refused(no_compiler: None) -> None:
    with pytest.raises(InvalidRequest, match=r"not compiled: no C\+\+ compiler .* ramet warmup --out there, --in here"):
        host_library("cuda")


def test_a_bundle_brings_the_hosts_code(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    skip_without_kernels()
    monkeypatch.setenv("RAMET_CACHE", str(OWN_CACHE))  # the compiled library lasts
    compile_host(cache)
    write(tmp_path / "b", cache, Kind.of("cuda"))
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "elsewhere"))
    request.getfixturevalue("no_compiler")
    with pytest.raises(InvalidRequest):
        host_library("cuda")
    install(tmp_path / "b", "cuda")
    found = host_library("cuda")
    assert found.isa in ("portable", "neon")
    assert found.openmp is None
    compile_host(Kind.of("cuda").directory)  # leaves what is there
    assert write(tmp_path / "again", Kind.of("cuda").directory, Kind.of("cuda")) == 5


def test_turned_off_kernels_are_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels()
    monkeypatch.setenv("RAMET_NATIVE", "0")
    assert host_library("cuda").isa
