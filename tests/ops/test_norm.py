"""Normalisation, rotary embedding and gating on the CPU against their reference, by both paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from fixtures.cpu_variants import CpuVariants, skip_without_kernels

from ramet.ops import OpShape
from ramet.ops.norm import reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5
cpu = CpuVariants("norm")


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "compiled":
        skip_without_kernels()
    monkeypatch.setattr(cpu, "has_native", request.param == "compiled")
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
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(dtype: torch.dtype, rows: int, width: int, weighted: bool) -> None:
    x, weight = torch.randn(rows, width).to(dtype) * 3, torch.rand(width) if weighted else None
    assert_close(cpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), dtype)


def test_rms_norm_of_a_view(path: str) -> None:
    wide = torch.full((70, 100), torch.nan)
    wide[:, :64] = torch.randn(70, 64)
    x, weight = wide[:, :64], torch.rand(64)
    assert_close(cpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width"), [(1, 512), (3, 65), (4, 16)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_of_heads_that_lie_apart(dtype: torch.dtype, heads: int, width: int, weighted: bool) -> None:
    """As values stand in a projection, beside keys and queries."""
    wide = torch.full((70, heads + 2, width + 3), torch.nan, dtype=dtype)
    x, weight = wide[:, 1:-1, :width].normal_(), torch.rand(width) if weighted else None
    assert_close(cpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 63])
def test_rms_norm_of_a_wider_stream_is_rounded_once(dtype: torch.dtype, rows: int) -> None:
    x, weight = torch.randn(rows, 65), torch.rand(65)
    found = cpu.rms_norm(x, weight, EPS, dtype)
    assert found.dtype == dtype
    assert torch.equal(found, cpu.rms_norm(x, weight, EPS).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 63, 500])
@pytest.mark.parametrize("width", [1, 63, 65, 576])
def test_expert_norms(dtype: torch.dtype, rows: int, width: int) -> None:
    """Close to the reference, and the bits of the norms one by one."""
    wide = torch.full((rows, width + 7), torch.nan)
    x, dense, experts = wide[:, :width].normal_(0, 3), torch.rand(width), torch.rand(width)
    router = torch.rand(width).to(dtype)
    found = cpu.expert_norms(x, dense, experts, router, EPS)
    for a, b in zip(found, reference.expert_norms(x, dense, experts, router, EPS), strict=True):
        assert_close(a, b, dtype)
    for part, weight in zip(found, (dense, experts, router.float() * width**-0.5), strict=True):
        assert torch.equal(part, cpu.rms_norm(x, weight, EPS, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 63, 500])
@pytest.mark.parametrize("width", [1, 63, 65, 576])
@pytest.mark.parametrize("n_scales", [0, 1, 2])
@pytest.mark.parametrize("n_parts", [1, 2])
def test_join(dtype: torch.dtype, rows: int, width: int, n_scales: int, n_parts: int) -> None:
    """Close to the reference, and the bits of the steps one by one: a residual stream and what is made of it are
    float32, whatever products leave."""
    x, *given = torch.full((1 + n_parts, rows, width + 7), torch.nan)[:, :, :width].normal_(0, 3)
    parts = [(part.to(dtype), torch.rand(width)) for part in given]
    post = torch.rand(width) if n_parts == 2 else None
    scale = torch.rand(n_scales) if n_scales else None
    kinds = torch.randint(0, 2, (rows,), dtype=torch.int32) if n_scales == 2 else None
    found = cpu.join(x, parts, post, scale, kinds, EPS)
    assert_close(found, reference.join(x, parts, post, scale, kinds, EPS), torch.float32)
    both = sum(cpu.rms_norm(*part, EPS, torch.float32) for part in parts)
    expected = x + (both if post is None else cpu.rms_norm(both, post, EPS))
    if scale is not None:
        expected = expected * (scale if kinds is None else scale[kinds.long()][:, None])
    assert torch.equal(found, expected)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rotary"), [(256, 64), (512, 512), (512, 128), (80, 6), (80, 0)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate_part_of_heads_that_lie_apart(dtype: torch.dtype, head_dim: int, rotary: int, normed: bool) -> None:
    """The queries' half of a projection whose other half is a gate: the gate stays as it is."""
    wide = torch.randn(40, 2 * 3 * head_dim).to(dtype)
    rotation = torch.randn(40, 2, rotary // 2)
    norm = torch.rand(head_dim) if normed else None
    expected, _, _ = reference.rotate(wide.clone()[:, : 3 * head_dim], rotation, 3, 0, norm, None, EPS)
    both = wide.clone()
    found, _, _ = cpu.rotate(both.chunk(2, 1)[0], rotation, 3, 0, norm, None, EPS)
    assert_close(found, expected, dtype)
    assert torch.equal(both[:, 3 * head_dim :], wide[:, 3 * head_dim :])


def test_rotate_leaves_values_alone() -> None:
    qkv = torch.randn(30, 5 * 32)
    _, _, v = cpu.rotate(qkv.clone(), torch.full((30, 2, 16), torch.nan), 3, 1, None, None, EPS)
    assert torch.equal(v.flatten(1), qkv[:, -32:])


ACTIVATIONS = ["silu", "gelu_tanh"]
ENDS = [0.0, 80.0, 90.0, 1e4, 3e38, torch.inf, -80.0, -90.0, -1e4, -3e38, torch.nan]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 12, 63, 500])
@pytest.mark.parametrize("width", [1, 63, 65, 1536])
def test_gated(activation: str, dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = torch.randn(rows, 2 * width).to(dtype) * 4
    assert_close(cpu.gated(gate_up, activation), reference.gated(gate_up, activation), dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_at_the_ends(activation: str, dtype: torch.dtype) -> None:
    gate = torch.tensor(ENDS * 5).to(dtype)
    found = cpu.gated(torch.cat((gate, torch.ones_like(gate)))[None], activation)
    expected = reference.gated(torch.cat((gate, torch.ones_like(gate)))[None], activation)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-30, equal_nan=True)


def test_gelu_tanh_to_the_rounding_of_float32(path: str) -> None:
    """Against float64. Where tanh is close to -1 the formula itself cancels in float32, and torch's result with it."""
    gate = torch.linspace(-5, 5, 4001)
    u = (2 / torch.pi) ** 0.5 * (gate.double() + 0.044715 * gate.double() ** 3)
    exact = gate * torch.sigmoid(2 * u)
    found = cpu.gated(torch.cat((gate, torch.ones_like(gate)))[None], "gelu_tanh")[0]
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)
    if path == "compiled":
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("width", [1, 63, 2048])
def test_sigmoid_mul(dtype: torch.dtype, rows: int, width: int) -> None:
    x = torch.randn(rows, 2 * width).to(dtype)[:, :width]
    gate = torch.randn(rows, 2 * width).to(dtype).chunk(2, 1)[1] * 4
    assert_close(cpu.sigmoid_mul(x, gate), reference.sigmoid_mul(x, gate), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sigmoid_mul_at_the_ends(dtype: torch.dtype) -> None:
    gate = torch.tensor([ENDS]).to(dtype)
    found, expected = (mul(torch.ones_like(gate), gate) for mul in (cpu.sigmoid_mul, reference.sigmoid_mul))
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-30, equal_nan=True)


ONES, RISING = torch.ones(576), torch.linspace(0, 1, 576)
OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # each of rows [T, 576]
    "rms_norm": lambda x: cpu.rms_norm(x, RISING, EPS),
    "rms_norm of heads": lambda x: cpu.rms_norm(x.unflatten(1, (6, 96)), None, EPS),
    "expert_norms": lambda x: torch.cat(cpu.expert_norms(x.float(), ONES, RISING, RISING.to(x.dtype), EPS), 1),
    "join": lambda x: cpu.join(x.float(), [(x, RISING), (x, ONES)], ONES, None, None, EPS),
    "rotate": lambda x: cpu.rotate(
        x.clone(), x[:, :64].float().unflatten(1, (2, 32)), 4, 1, torch.linspace(0, 1, 96), None, EPS
    )[0],
    "silu": lambda x: cpu.gated(x, "silu"),
    "gelu_tanh": lambda x: cpu.gated(x, "gelu_tanh"),
    "sigmoid_mul": lambda x: cpu.sigmoid_mul(*x.chunk(2, 1)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rows_bits_depend_neither_on_others_nor_on_threads(path: str, operation: str, dtype: torch.dtype) -> None:
    if path == "plain":
        pytest.skip("torch promises nothing of the kind")
    x, run = torch.randn(600, 576).to(dtype), OPERATIONS[operation]
    together = run(x)
    assert bool(together.isfinite().all())
    for lo, hi in ((0, 1), (5, 12), (599, 600)):
        assert torch.equal(run(x[lo:hi]), together[lo:hi])
        assert torch.equal(run(torch.cat((x, x))[600 + lo : 600 + hi]), together[lo:hi])
    for n in (2, 3):
        torch.set_num_threads(n)
        assert torch.equal(run(x), together)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rows_bits_do_not_depend_on_where_it_lies(path: str, operation: str, dtype: torch.dtype) -> None:
    """Rows side by side, and the same at another address among NaN."""
    if path == "plain":
        pytest.skip("torch promises nothing of the kind")
    x, apart = torch.randn(70, 576).to(dtype), torch.full((70, 600), torch.nan, dtype=dtype)
    apart[:, 5:581] = x
    run = OPERATIONS[operation]
    for lo, hi in ((0, 70), (69, 70), (3, 20)):
        assert torch.equal(run(apart[lo:hi, 5:581]), run(x)[lo:hi])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 65, 130])
def test_bits_of_odd_widths_depend_on_their_row(path: str, dtype: torch.dtype, width: int) -> None:
    if path == "plain":
        pytest.skip("torch promises nothing of the kind")
    x = torch.randn(300, 2 * width).to(dtype)
    assert torch.equal(cpu.rms_norm(x[7:12], None, EPS), cpu.rms_norm(x, None, EPS)[7:12])
    assert torch.equal(cpu.gated(x[7:12], "silu"), cpu.gated(x, "silu")[7:12])


def test_half_precision_takes_torch() -> None:
    assert cpu.of(OpShape(torch.float16)) is reference


def test_no_kernel_reads_numbers_of_another_size(path: str) -> None:
    if path == "compiled":
        with pytest.raises(KeyError):
            cpu.rms_norm(torch.randn(5, 64).double(), torch.ones(64), EPS)
