"""Products on CUDA against plain torch in float64; our own by Triton, on a GPU or interpreted."""

from __future__ import annotations

import pytest
import torch
from fixtures.triton_device import DEVICE

from ramet.ops.linear import triton as ours

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCE)
H200 = 132, 227 << 10  # multiprocessors, and bytes that a program may share
on_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="interpreted sums are numpy's, not the card's")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).to(DEVICE)


def assert_close(found: torch.Tensor, expected: torch.Tensor, k: int) -> None:
    tolerance = TOLERANCE[found.dtype]
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * k**0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 12, 65, 130])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (1, 576), (63, 65), (264, 136)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("pack", [ours.pack, ours.pack_invariant])
def test_products(dtype: torch.dtype, rows: int, n: int, k: int, biased: bool, pack: type[ours.LibraryLinear]) -> None:
    """Sizes that the card's unit for copies can move, and others."""
    weight, x, bias = (randn(*size, dtype=dtype) for size in ((n, k), (rows, k), (n,)))
    residual = randn(rows, n, dtype=torch.float32)
    product = pack(weight, bias if biased else None)
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    total = expected + residual.double()
    assert_close(product(x), expected, k)
    assert_close(product.add(x, residual), total, k)  # which residual does not outlive


@pytest.mark.parametrize("tile", list(ours._TILES), ids=str)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("described", [False, True])
def test_every_tile(tile: ours.ProductTile, added: bool, described: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns and sums that fill no block; nothing behind the result is written."""
    if not described:
        monkeypatch.setattr(ours, "_described", lambda *_: False)
    elif not ours._described(randn(8, 8, dtype=torch.bfloat16)):
        pytest.skip("this card has no unit for copies")
    tile = ours.fit(tile, ours.memory_of(DEVICE), added=added)
    weight, x, bias = (randn(*size, dtype=torch.bfloat16) for size in ((328, 200), (130, 200), (328,)))
    whole = torch.full((140, 328), 3.0, dtype=torch.float32 if added else torch.bfloat16, device=DEVICE)
    ours.multiply(x, weight, bias, whole[:130], tile, added=added)
    expected = x.double() @ weight.double().T + bias.double() + 3.0 * added
    assert_close(whole[:130], expected, 200)
    assert bool((whole[130:] == 3.0).all())


def test_rows_that_lie_apart() -> None:
    wide = randn(30, 100, dtype=torch.bfloat16).fill_(torch.nan)
    wide[:, 8:40] = randn(30, 32, dtype=torch.bfloat16)
    weight, odd = randn(48, 32, dtype=torch.bfloat16), randn(30, 37, dtype=torch.bfloat16)[:, 5:]
    for x in (wide[:, 8:40], odd):
        assert_close(ours.pack_invariant(weight)(x), x.double() @ weight.double().T, 32)


def test_a_row_of_nan_spoils_itself_alone() -> None:
    weight, x = randn(72, 64, dtype=torch.bfloat16), randn(70, 64, dtype=torch.bfloat16)
    x[65:] = torch.nan
    assert bool(ours.pack_invariant(weight)(x)[:65].isfinite().all())


@pytest.mark.parametrize("n_rows", [1, 64, 65, 460, 2048, 16384])
@pytest.mark.parametrize(("n", "k"), [(8224, 1024), (1024, 3584), (2560, 9216)])
@pytest.mark.parametrize("memory", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("added", [False, True])
def test_what_is_chosen_fits(n_rows: int, n: int, k: int, memory: int, added: bool) -> None:
    tile = ours.choose(n_rows, n, k, torch.bfloat16, 132, memory, added=added)
    assert tile.stages >= 2
    assert (tile.block_m + tile.width) * 2 * tile.block_k * tile.stages < memory


def test_few_rows_have_small_tiles_and_many_large_ones() -> None:
    few, many = (ours.choose(n, 8224, 1024, torch.bfloat16, *H200, added=False) for n in (16, 16384))
    assert few.block_m == 64
    assert many.block_m == 128
    assert many.width >= 256


def cancelling(rows: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] and weight [n, k] whose sums are 0 but for their rounding, so that any other order of a sum shows."""
    order = torch.randperm(k // 2)
    x, weight = randn(rows, k // 2, dtype=dtype), randn(n, k // 2, dtype=dtype)
    return torch.cat((x, -x[:, order]), 1), torch.cat((weight, weight[:, order]), 1)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1024, 3584), (8224, 1024), (33, 1502), (1, 66)])
def test_a_row_alone_has_the_bits_that_it_has_among_others(dtype: torch.dtype, n: int, k: int) -> None:
    """Whatever tiles are chosen."""
    x, weight = cancelling(5000, n, k, dtype)
    residual = randn(5000, n, dtype=torch.float32) * 1e-5
    product = ours.pack_invariant(weight)
    whole, total = product(x), product.add(x, residual.clone())
    for begin, end in ((0, 1), (4999, 5000), (3, 5), (1, 65), (200, 300), (5, 700), (0, 513), (100, 1200), (7, 3000)):
        rows = slice(begin, end)
        assert torch.equal(product(x[rows]), whole[rows])
        assert torch.equal(product.add(x[rows], residual[rows].clone()), total[rows])


@on_gpu
@pytest.mark.parametrize(("n", "k"), [(1024, 3584), (8224, 1024)])
def test_all_tiles_have_the_same_bits(n: int, k: int) -> None:
    x, weight = cancelling(700, n, k, torch.bfloat16)
    found = []
    for tile in ours._TILES:
        out = x.new_empty(700, n)
        ours.multiply(x, weight, None, out, ours.fit(tile, ours.memory_of(DEVICE), added=False), added=False)
        found.append(out)
    assert all(torch.equal(out, found[0]) for out in found)


@on_gpu
def test_recorded() -> None:
    """What a graph has recorded is computed anew from what lies at the same addresses, each launch after the last."""
    x, weight = cancelling(460, 1024, 2048, torch.bfloat16)
    residual, product = randn(460, 1024, dtype=torch.float32), ours.pack_invariant(weight)
    expected, total, start = product(x), product.add(x, residual.clone()), residual.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, added = product(x), product.add(x, residual)
    for _ in range(2):
        residual.copy_(start)
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
        assert torch.equal(added, total)
