"""Building, caching and loading the compiled kernels, what happens without them, and the choice of operations."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.draws import random_sampling, same

from ramet.ops import Ops, OpShape, backends, choose, native
from ramet.ops.attention import reference
from ramet.ops.head import reference as head_reference
from ramet.ops.native import build, loader
from ramet.ops.norm import reference as norm_reference
from ramet.round import Stream, pack
from ramet.tree import Read, Segment, Tree
from ramet.units import Unit, Units

CPU = torch.device("cpu")
QUICK = ("-O0", "-march=native", "-std=c++17", "-fPIC", "-Wno-psabi")


@pytest.fixture
def compiler() -> build.Compiler:
    try:
        return build.find_compiler()
    except build.BuildError as e:
        pytest.skip(str(e))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The library is looked for anew, in the test and after it."""
    caches = (loader._found, loader._compiled)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def small_stream() -> Stream:
    segments = [Segment(np.zeros(200, np.int32)), *(Segment(np.zeros(n, np.int32), 0, 1, [Read([1])]) for n in (30, 7))]
    none = np.zeros(0, np.int32)
    return pack(Units.of([Unit(Tree.of(segments), none, 0, none)])).on(CPU)


def check_all(stream: Stream) -> None:
    """Every kernel, through the functions that layers call."""
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        qkv = torch.randn(len(stream.tokens), 10, 48).to(dtype)
        q, k, v = qkv.split([6, 2, 2], 1)
        ops = choose(CPU)(OpShape(dtype, head_dim=48))
        found = ops.attention(q, k, v, stream, stream.every, None, scale=0.2)
        expected = reference.attention(q.double(), k.double(), v.double(), stream, stream.every, None, scale=0.2)
        assert float((found.double() - expected).abs().max()) < limit
        x = torch.randn(70, 130).to(dtype)
        pairs = [(ops.gated(x, "silu"), norm_reference.gated(x, "silu"))]
        pairs.append((ops.rms_norm(x, torch.ones(130), 1e-5), norm_reference.rms_norm(x, torch.ones(130), 1e-5)))
        turn = torch.randn(len(stream.tokens), 2, 24)
        pairs += zip(
            ops.rotate(qkv.flatten(1).clone(), turn, 6, 2, None, None, 1e-5),
            norm_reference.rotate(qkv.flatten(1).clone(), turn, 6, 2, None, None, 1e-5),
            strict=True,
        )
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=limit, atol=limit)
        hidden, weight = torch.randn(2, 34).to(dtype), torch.randn(3000, 34).to(dtype)
        logits, norms = ops.read(hidden, ops.prepare(weight), stream)
        wide = hidden.double() @ weight.double().T
        torch.testing.assert_close(logits.double(), wide[:, 1], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(norms.double(), wide.logsumexp(-1), rtol=1e-5, atol=1e-4)
        check_sample(ops, dtype)


def check_sample(ops: Ops, dtype: torch.dtype) -> None:
    """Rows drawn in every way, against the same in float64; their bits are their own."""
    how, rows = random_sampling(np.random.default_rng(2), 70), torch.arange(70)
    hidden, weight = (torch.randn(70, 66) / 8).to(dtype), torch.randn(3001, 66).to(dtype)
    found = ops.sample(hidden, rows, ops.prepare(weight), how, excluded=3)
    tokens, *rest = head_reference.sampled(hidden.double() @ weight.double().T, how, 3)
    kept = found.tokens == tokens
    assert int(kept.sum()) >= 69  # a number may fall within rounding of an edge
    for a, b in zip((found.logprobs, found.entropy), rest, strict=True):
        torch.testing.assert_close(a[kept].double(), b[kept], rtol=1e-5, atol=1e-4)
    for which in (np.arange(1), np.arange(69, 36, -1)):
        part = head_reference.part_of(how, which)
        assert same(ops.sample(hidden, rows[which], ops.prepare(weight), part, excluded=3), found, which)


def test_status_names_the_processor_and_the_threads(compiler: build.Compiler) -> None:
    available, reason = native.status()
    found = native.library()
    assert available
    assert found is not None
    assert reason.startswith(found.isa)


def test_one_openmp_runtime_and_one_pool() -> None:
    found = native.library()
    if found is None or found.openmp is None:
        pytest.skip(f"no threads here: {native.status()[1]}")
    check_all(small_stream())
    # scikit-learn, which other tests import, brings one of its own.
    maps = [each for each in Path("/proc/self/maps").read_text().split() if "scikit_learn" not in each]
    assert {Path(p).name for p in maps if Path(p).name.startswith(("libgomp", "libiomp", "libomp"))} == {
        found.openmp.name
    }
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.randn(1 << 20).exp_().sum()
    threads = len(list(Path("/proc/self/task").iterdir()))
    ops = choose(CPU)(OpShape(torch.float32))
    for _ in range(3):
        ops.gated(torch.randn(512, 2048), "silu")
    assert len(list(Path("/proc/self/task").iterdir())) <= threads
    torch.set_num_threads(before)


def test_turned_off(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_NATIVE", "0")
    assert native.status() == (False, "turned off by RAMET_NATIVE=0")
    assert "RAMET_NATIVE=0" in choose(CPU)(OpShape(torch.float32)).why["attention"]
    check_all(small_stream())


@pytest.mark.parametrize("machine", build.MACHINES)
def test_compiled_for_less_than_the_processor_has(
    machine: str, compiler: build.Compiler, forgotten: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        build.flags_for(machine)
    except build.BuildError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("RAMET_NATIVE", machine)
    found = native.library()
    assert found is not None
    assert found.isa == machine
    check_all(small_stream())


def test_an_unknown_machine_is_told(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_NATIVE", "avx3")
    with pytest.warns(RuntimeWarning, match="none of 0, 1, portable, avx2"):
        assert native.library() is None


def test_without_a_compiler(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(RuntimeWarning, match="no-such-compiler") as told:
        assert native.library() is None
    assert len(told) == 1
    available, reason = native.status()  # another warning would be an error
    assert not available
    assert "no C++ compiler (no-such-compiler)" in reason
    check_all(small_stream())


def test_a_failed_build_is_told_by_the_compilers_words(
    forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "c++"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit\necho "x.h:1: error: no such thing"\nexit 1\n'
    )
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "cache"))
    with pytest.warns(RuntimeWarning, match="error: no such thing"):
        assert native.library() is None
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache(compiler: build.Compiler, tmp_path: Path) -> None:
    """Two build at once, a third finds what they left, and a damaged file is built again."""
    openmp = build.find_openmp(compiler)
    with ThreadPoolExecutor(2) as pool:
        made = set(pool.map(lambda _: build.build(compiler, openmp, QUICK, tmp_path), range(2)))
    assert set(tmp_path.iterdir()) == made
    file = build.build(compiler, openmp, QUICK, tmp_path)
    assert file in made
    stamp = file.stat().st_mtime_ns
    assert build.build(compiler, openmp, QUICK, tmp_path).stat().st_mtime_ns == stamp
    for each in made:
        each.write_bytes(each.read_bytes()[:-100])
    again = build.build(compiler, openmp, QUICK, tmp_path)
    assert set(tmp_path.iterdir()) == {again}
    assert native.Library.open(again, openmp).isa


def test_a_cache_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "a" / "b"))
    assert build.cache_directory() == tmp_path / "a" / "b"
    monkeypatch.delenv("RAMET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert build.cache_directory() == tmp_path / "user" / "ramet"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "file"))
    assert build.cache_directory().is_dir()


def test_the_cache_of_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("RAMET_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert build.cache_directory() == build.cache_directory()
    assert build.cache_directory().is_dir()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize(
    ("march", "isa", "needs"),
    [("x86-64", "portable", "sse2"), ("x86-64-v3", "avx2", "avx2"), ("x86-64-v4", "avx512", "avx512vl")],
)
def test_other_processors(
    compiler: build.Compiler, monkeypatch: pytest.MonkeyPatch, march: str, isa: str, needs: str
) -> None:
    if needs not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this processor has no {needs}")
    flags = tuple(f"-march={march}" if f.startswith("-march") else f for f in build.FLAGS)
    found = loader.load(flags)
    assert found.isa == isa
    monkeypatch.setattr(backends, "library", lambda: found)
    check_all(small_stream())
