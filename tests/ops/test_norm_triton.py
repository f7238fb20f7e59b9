"""Normalisation, rotary embedding and gating in Triton against their reference: on a GPU, or interpreted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixtures.triton_device import DEVICE

from ramet.cache.kv import KeyValue
from ramet.ops.norm import reference
from ramet.ops.norm import triton as ours
from ramet.round import pack
from ramet.tree import Segment, Tree
from ramet.units import Unit, Units

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of overflow where kernels are interpreted
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5
ROWS = [0, 1, 7, 65]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).to(DEVICE)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 65, 576, 2560])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(dtype: torch.dtype, rows: int, width: int, weighted: bool) -> None:
    x, weight = randn(rows, width, dtype=dtype) * 3, randn(width) if weighted else None
    assert_close(ours.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width"), [(1, 512), (3, 65), (4, 16), (16, 128)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_of_heads_that_lie_apart(dtype: torch.dtype, heads: int, width: int, weighted: bool) -> None:
    wide = torch.full((13, heads + 2, width + 3), torch.nan, dtype=dtype, device=DEVICE)
    x, weight = wide[:, 1:-1, :width].normal_(), randn(width) if weighted else None
    assert_close(ours.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), dtype)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rms_norm_spoils_one_row(bad: float) -> None:
    x = randn(50, 96, dtype=torch.bfloat16)
    x[7, 95] = bad
    found = ours.rms_norm(x, torch.ones(96, device=DEVICE), EPS)
    assert bool(found[7, 95].isnan())
    assert bool(found[torch.arange(50) != 7].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 65, 576, 2816])
def test_expert_norms(dtype: torch.dtype, rows: int, width: int) -> None:
    x = torch.full((rows, width + 5), torch.nan, device=DEVICE)[:, :width].normal_()
    weights = randn(width), randn(width), randn(width, dtype=dtype)
    for found, expected in zip(
        ours.expert_norms(x, *weights, EPS), reference.expert_norms(x, *weights, EPS), strict=True
    ):
        assert_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 65, 2816])
@pytest.mark.parametrize("doubled", [True, False])
@pytest.mark.parametrize("n_scales", [0, 1, 2])
def test_join(dtype: torch.dtype, rows: int, width: int, doubled: bool, n_scales: int) -> None:
    x, *parts = (torch.full((rows, width + 5), torch.nan, device=DEVICE)[:, :width].normal_() for _ in range(3))
    weights = [(part.to(dtype), randn(width)) for part in parts][: 1 + doubled]
    post = randn(width) if doubled else None
    scale = randn(n_scales) if n_scales else None
    kinds = torch.randint(0, 2, (rows,), dtype=torch.int32).to(DEVICE) if n_scales == 2 else None
    found = ours.join(x, weights, post, scale, kinds, EPS)
    assert_close(found, reference.join(x, weights, post, scale, kinds, EPS), torch.float32)


@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_of_a_wider_stream_is_rounded_once(rows: int) -> None:
    x, weight = randn(rows, 320), randn(320)
    found = ours.rms_norm(x, weight, EPS, torch.bfloat16)
    assert torch.equal(found, ours.rms_norm(x, weight, EPS).to(torch.bfloat16))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("half", [0, 1, 3, 32, 128])
@pytest.mark.parametrize("scale", [1.0, 1.34])
def test_rotation(rows: int, half: int, scale: float) -> None:
    """Positions up to 262143, whose angles are large, to the rounding of float32."""
    positions = torch.randint(0, 262144, (rows,), dtype=torch.int32).to(DEVICE)
    if rows:
        positions[0], positions[-1] = 0, 262143
    frequencies = (1e6 ** -torch.linspace(0, 1, half)).to(DEVICE)
    found = ours.rotation(positions, frequencies, scale)
    angles = (positions[:, None].float() * frequencies).double()
    expected = torch.stack((angles.cos(), angles.sin()), 1) * scale
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((1, 1), 16), ((4, 1), 80), ((3, 3), 6), ((0, 2), 256)])
@pytest.mark.parametrize("normed", [(True, True), (False, False), (True, False), (False, True)])
def test_rotate(
    dtype: torch.dtype, rows: int, heads: tuple[int, int], head_dim: int, normed: tuple[bool, bool]
) -> None:
    qkv = randn(rows, (heads[0] + 2 * heads[1]) * head_dim, dtype=dtype)
    rotation = randn(rows, 2, head_dim // 2)
    norms = [randn(head_dim) if some else None for some in normed]
    expected = reference.rotate(qkv.clone(), rotation, *heads, *norms, EPS)
    found = ours.rotate(qkv.clone(), rotation, *heads, *norms, EPS)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rotary"), [(256, 64), (512, 512), (512, 128), (80, 6), (80, 0)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate_part_of_heads_that_lie_apart(dtype: torch.dtype, head_dim: int, rotary: int, normed: bool) -> None:
    """The queries' half of a projection whose other half is a gate: the gate stays as it is, and is not looked at."""
    wide = torch.full((13, 2 * 3 * head_dim), torch.nan, device=DEVICE, dtype=dtype)
    wide[:, : 3 * head_dim].normal_()
    rotation = randn(13, 2, rotary // 2)
    norm = randn(head_dim) if normed else None
    expected, _, _ = reference.rotate(wide.clone()[:, : 3 * head_dim], rotation, 3, 0, norm, None, EPS)
    found, _, _ = ours.rotate(wide.chunk(2, 1)[0], rotation, 3, 0, norm, None, EPS)
    assert_close(found, expected, dtype)
    assert bool(wide[:, 3 * head_dim :].isnan().all())


def test_rotate_leaves_values_alone() -> None:
    qkv = randn(9, 5 * 32)
    nan = torch.full((9, 2, 16), torch.nan, device=DEVICE)
    _, _, v = ours.rotate(qkv.clone(), nan, 3, 1, None, None, EPS)
    assert torch.equal(v.flatten(1), qkv[:, -32:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim", "rotary"), [((4, 2), 64, 64), ((0, 1), 128, 128), ((3, 1), 64, 16)])
def test_rotate_keeps_what_it_turned(dtype: torch.dtype, heads: tuple[int, int], head_dim: int, rotary: int) -> None:
    n_rows, n_kept = 40, 13
    unit = Unit(Tree.of([Segment(range(n_rows))]), slots=np.arange(n_kept, dtype=np.int32) + 20)
    stream = pack(Units.of([unit])).on(DEVICE)
    stream.kept_slots[5:7] = -1
    qkv, turns = randn(n_rows, (heads[0] + 2 * heads[1]) * head_dim, dtype=dtype), randn(n_rows, 2, rotary // 2)
    norms = [randn(head_dim) if n else None for n in heads]
    pages = KeyValue(*(torch.full((5, 8, heads[1], head_dim), 7.0, device=DEVICE, dtype=dtype) for _ in "kv"))
    _, k, v = ours.rotate(qkv, turns, *heads, *norms, EPS, pages, stream)
    places = [i for i in range(n_kept) if i not in (5, 6)]
    for found, rows in ((pages.keys, k), (pages.values, v)):
        expected = torch.full_like(found, 7.0).view(-1, heads[1], head_dim)
        expected[[20 + i for i in places]] = rows[places]
        assert torch.equal(found.view_as(expected), expected)


ACTIVATIONS = ["silu", "gelu_tanh"]
ENDS = [0.0, 80.0, 90.0, 1e4, 3e38, torch.inf, -80.0, -90.0, -1e4, -3e38, torch.nan]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 65, 1536])
def test_gated(activation: str, dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = randn(rows, 2 * width, dtype=dtype) * 4
    assert_close(ours.gated(gate_up, activation), reference.gated(gate_up, activation), dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_at_the_ends(activation: str, dtype: torch.dtype) -> None:
    gate = torch.tensor(ENDS * 5).to(dtype).to(DEVICE)
    ones = torch.ones_like(gate)
    found = ours.gated(torch.cat((gate, ones))[None], activation)
    expected = reference.gated(torch.cat((gate, ones))[None], activation)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-30, equal_nan=True)


def test_gelu_tanh_to_the_rounding_of_float32() -> None:
    """Against float64, also where the formula as it is written cancels."""
    gate = torch.linspace(-5, 5, 4001, device=DEVICE)
    u = (2 / torch.pi) ** 0.5 * (gate.double() + 0.044715 * gate.double() ** 3)
    found = ours.gated(torch.cat((gate, torch.ones_like(gate)))[None], "gelu_tanh")[0]
    torch.testing.assert_close(found.double(), gate * torch.sigmoid(2 * u), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 63, 2048])
def test_sigmoid_mul(dtype: torch.dtype, rows: int, width: int) -> None:
    x = randn(rows, 2 * width, dtype=dtype)[:, :width]
    gate = randn(rows, 2 * width, dtype=dtype).chunk(2, 1)[1] * 4
    assert_close(ours.sigmoid_mul(x, gate), reference.sigmoid_mul(x, gate), dtype)


def test_sigmoid_mul_of_one_gate_a_row() -> None:
    x, gate = randn(9, 96), randn(9, 1)
    assert_close(ours.sigmoid_mul(x, gate.expand_as(x)), reference.sigmoid_mul(x, gate), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sigmoid_mul_at_the_ends(dtype: torch.dtype) -> None:
    gate = torch.tensor([ENDS]).to(dtype).to(DEVICE)
    found, expected = (mul(torch.ones_like(gate), gate) for mul in (ours.sigmoid_mul, reference.sigmoid_mul))
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-30, equal_nan=True)


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # each of rows [T, 576]
    "rms_norm": lambda x: ours.rms_norm(x, torch.linspace(0, 1, 576, device=DEVICE), EPS),
    "rms_norm of heads": lambda x: ours.rms_norm(x.unflatten(1, (6, 96)), None, EPS),
    "rotate": lambda x: ours.rotate(
        x, x[:, :64].float().unflatten(1, (2, 32)), 4, 1, torch.linspace(0, 1, 96, device=DEVICE), None, EPS
    )[0],
    "silu": lambda x: ours.gated(x, "silu"),
    "gelu_tanh": lambda x: ours.gated(x, "gelu_tanh"),
    "sigmoid_mul": lambda x: ours.sigmoid_mul(*x.chunk(2, 1)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rows_bits_depend_neither_on_others_nor_on_its_place(operation: str, dtype: torch.dtype) -> None:
    x, run = randn(70, 576, dtype=dtype), OPERATIONS[operation]
    together, apart = run(x), torch.full((70, 600), torch.nan, dtype=dtype, device=DEVICE)
    apart[:, 5:581] = x
    assert bool(together.isfinite().all())
    for lo, hi in ((0, 1), (5, 12), (69, 70)):
        assert torch.equal(run(x[lo:hi].clone()), together[lo:hi])
        assert torch.equal(run(apart[lo:hi, 5:581]), together[lo:hi])


@pytest.mark.skipif(DEVICE.type != "cuda", reason="true sizes need a GPU")
@pytest.mark.parametrize("rows", [460, 10240])
def test_true_sizes(rows: int) -> None:
    x, wide = randn(rows, 2560, dtype=torch.bfloat16), randn(rows, 18432, dtype=torch.bfloat16)
    weight = randn(2560)
    assert_close(ours.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), torch.bfloat16)
    assert_close(ours.gated(wide, "silu"), reference.gated(wide, "silu"), torch.bfloat16)
    heads, norm, turn = wide[:, :8192].chunk(2, 1)[0], randn(256), randn(rows, 2, 32)
    found = ours.rotate(heads, turn, 16, 0, norm, None, EPS)[0]
    assert_close(found, reference.rotate(heads, turn, 16, 0, norm, None, EPS)[0], torch.bfloat16)
