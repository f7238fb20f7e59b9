"""Normalisation, rotary embedding and gating on the CPU against their reference, by both paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ramet.ops import native
from ramet.ops.norm import cpu, reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    found = native.library() if request.param == "compiled" else None
    if found is None and request.param == "compiled":
        pytest.skip(f"no compiled kernels here: {native.status()[1]}")
    monkeypatch.setattr(cpu, "library", lambda: found)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # quicker for many small arrays; other numbers are tested below
    torch.use_deterministic_algorithms(True)  # torch.empty is NaN
    yield str(request.param)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 12, 63, 500])
@pytest.mark.parametrize("width", [1, 63, 65, 576])
def test_rms_norm(dtype: torch.dtype, rows: int, width: int) -> None:
    x, weight = torch.randn(rows, width).to(dtype) * 3, torch.rand(width)
    assert_close(cpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), dtype)


def test_rms_norm_of_a_view(path: str) -> None:
    wide = torch.full((70, 100), torch.nan)
    wide[:, :64] = torch.randn(70, 64)
    x, weight = wide[:, :64], torch.rand(64)
    assert_close(cpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rms_norm_spoils_one_row(dtype: torch.dtype, bad: float) -> None:
    x = torch.randn(500, 96).to(dtype)
    x[7, 95] = bad
    found = cpu.rms_norm(x, torch.ones(96), EPS)
    assert bool(found[7, 95].isnan())
    assert torch.equal(found[7].isnan(), reference.rms_norm(x, torch.ones(96), EPS)[7].isnan())
    assert bool(found[torch.arange(500) != 7].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 12, 500])
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((1, 1), 16), ((4, 1), 80), ((3, 3), 6)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate(dtype: torch.dtype, rows: int, heads: tuple[int, int], head_dim: int, normed: bool) -> None:
    qkv = torch.randn(rows, (heads[0] + 2 * heads[1]) * head_dim).to(dtype)
    rotation = torch.randn(rows, 2, head_dim // 2)
    q_norm, k_norm = (torch.rand(head_dim), torch.rand(head_dim)) if normed else (None, None)
    expected = reference.rotate(qkv.clone(), rotation, *heads, q_norm, k_norm, EPS)
    found = cpu.rotate(qkv.clone(), rotation, *heads, q_norm, k_norm, EPS)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, dtype)


def test_rotate_leaves_values_alone() -> None:
    qkv = torch.randn(30, 5 * 32)
    _, _, v = cpu.rotate(qkv.clone(), torch.full((30, 2, 16), torch.nan), 3, 1, None, None, EPS)
    assert torch.equal(v.flatten(1), qkv[:, -32:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 12, 63, 500])
@pytest.mark.parametrize("width", [1, 63, 65, 1536])
def test_silu(dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = torch.randn(rows, 2 * width).to(dtype) * 4
    assert_close(cpu.gated(gate_up, "silu"), reference.gated(gate_up, "silu"), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_at_the_ends(dtype: torch.dtype) -> None:
    gate = torch.tensor([0.0, 80.0, 90.0, 1e4, 3e38, torch.inf, -80.0, -90.0, -1e4, -3e38, torch.nan] * 5).to(dtype)
    found = cpu.gated(torch.cat((gate, torch.ones_like(gate)))[None], "silu")
    expected = reference.gated(torch.cat((gate, torch.ones_like(gate)))[None], "silu")
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-30, equal_nan=True)


def test_bits_do_not_depend_on_threads() -> None:
    x, weight, gate_up = torch.randn(600, 576), torch.rand(576), torch.randn(600, 640)
    found = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found.append(torch.cat((cpu.rms_norm(x, weight, EPS), cpu.gated(gate_up, "silu")), 1))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_half_precision_takes_torch() -> None:
    x = torch.randn(5, 64).half()
    assert torch.equal(cpu.rms_norm(x, torch.ones(64), EPS), reference.rms_norm(x, torch.ones(64), EPS))
